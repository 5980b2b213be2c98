"""Chat templates in the forms that published ones have, written anew and shorter, and ten conversations for each."""

MACROS = """
{%- macro type_of(p) -%}
{%- if p.type is string -%}{{ {'string': 'str', 'integer': 'int', 'number': 'float', 'boolean': 'bool'}.get(p.type, 'Any') }}
{%- elif p.type is iterable -%}Union[{% for t in p.type %}{{ t }}{{ ',' if not loop.last }}{% endfor %}]
{%- elif p.anyOf is defined -%}{% for q in p.anyOf %}{{ type_of(q) }}{% if not loop.last %} | {% endif %}{% endfor %}
{%- else -%}Any{%- endif -%}
{%- endmacro -%}
"""

TEMPLATES = {
    # Hermes, Qwen 2.5: tools as lines of JSON, calls in tags, results of neighbours in one turn.
    "tags": """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You help.' }}{%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
    # Llama 3.1: dates, tools in the first user's turn, one call at a time.
    "dates": """
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}{{- system_message }}{{- "<|eot_id|>" }}
{%- if tools is not none %}
    {%- if messages | length != 0 %}
        {%- set first = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
    {%- else %}{{- raise_exception("no first user's message for the tools") }}{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("one call at a time") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
""",
    # Mistral: the tools before the last user's turn, ids of nine letters, turns that alternate.
    "alternate": """
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}{{- raise_exception("ids have nine letters") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}
        {%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content | string + ", " }}{{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception("Only user and assistant roles, with tools, not " + message.role) }}{%- endif %}
{%- endfor %}
""",
    # Command R: tools as Python's signatures, by macros.
    "signatures": MACROS + """
{{- bos_token -}}
{%- if tools -%}
{%- for tool in tools -%}{%- set f = tool.function if 'function' in tool else tool %}
{{ "\\ndef " + f.name + "(" }}
{%- for name, p in f.parameters.properties.items() -%}
{{ name }}: {{ type_of(p) }}{% if name not in f.parameters.required %} = None{% endif %}{% if not loop.last %}, {% endif %}
{%- endfor -%}
{{ "):\\n    " ~ '\"' * 3 + f.description | default("", true) }}
{%- for name, p in f.parameters.properties | dictsort %}{{ "\\n    " ~ loop.index ~ ". " ~ name ~ ": " ~ p.description | default('-') }}{% endfor %}
{{- '\"' * 3 }}
{% endfor -%}
{%- endif -%}
{%- for m in messages %}
{{ '<|' ~ m.role | upper ~ '|>' }}{% if m.content is string %}{{ m.content | trim }}{% else %}{% for c in m.content or [] %}{{ c.text if c.type == 'text' else '<' ~ c.type ~ '>' }}{% endfor %}{% endif %}
{%- for c in m.tool_calls or [] %}{{ '\\n' ~ loop.index0 ~ ': ' ~ c.function.name ~ '(' }}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %}){% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '\\n<|ASSISTANT|>' }}{% endif %}
""",
    # Qwen 3: thoughts are left out of turns before the last question.
    "thoughts": """
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role != "assistant" %}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- else %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning)) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
        {%- for c in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>' ~ c.function.name ~ (c.function.arguments if c.function.arguments is string else c.function.arguments | tojson) ~ '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
""",
    # Gemma 2 and 3: content in parts, the system's words before the user's, the model's own name for itself.
    "parts": """
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}{%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("Conversation roles must alternate") }}{%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}
""",
    # DeepSeek: a state that is carried through, no blanks between.
    "state": """
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}
{{- bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}{%- set ns.is_tool = false -%}
{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{{'<|Assistant|>' + (message['content'] or '') + tool['type'] + '<|sep|>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] | tojson + '\\n' + '```'}}{%- set ns.is_first = true -%}
{%- else %}{{'\\n' + tool['function']['name']}}{%- endif %}{%- endfor %}{%- endif %}
{%- if message['role'] == 'assistant' and not message['tool_calls'] %}{%- if ns.is_tool %}{{'<|outputs|>' + message['content'] + eos_token}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content + eos_token}}{%- endif %}{%- endif %}
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<|output|>' + message['content']}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}
{% if ns.is_tool %}{{'<|outputs end|>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|>'}}{% endif %}
""",
    # Phi 4 mini, Granite: tools and documents in the system's turn; dates; ASCII's own forms.
    "documents": """
{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set system_message = "Knowledge: " + ("%02d" | format(4)) + ". Year: " + (strftime_now('%Y') | length | string) + "." %}{%- set loop_messages = messages %}{%- endif %}
{%- if tools and documents %}{%- set system_message = system_message + " Tools and documents." %}
{%- elif tools %}{%- set system_message = system_message + " Tools: " + tools | map(attribute='function.name') | join('; ') + "." %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- for d in documents or [] %}{{- '<|doc ' ~ loop.index ~ '|>' ~ (d.title ~ ': ' if d.title) ~ d.text | truncate(20, true, '…') | wordcount ~ '\\n' }}{%- endfor %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}
    {%- if message.content is string %}{{- message['content'] | replace('\\r\\n', '\\n') | escape if html else message['content'] }}{%- endif %}
    {%- if message.tool_calls %}{{- '<|tool_call|>' ~ (message.tool_calls | map(attribute='function') | list | tojson) }}{%- endif %}
    {{- '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}{{- '<|end_of_role|>' }}{%- endif %}
{%- endfor %}
""",
    # Functionary, GLM 4: TypeScript's types of tools.
    "types": """
{%- macro schema(p, depth=1) -%}
{%- if p.enum %}{% for e in p.enum %}{{ e | tojson }}{{ ' | ' if not loop.last }}{% endfor %}
{%- elif p.type == 'array' %}{{ schema(p['items'] or {}, depth) }}[]
{%- elif p.type == 'object' and p.properties %}{ {{- '\\n' }}{% for k, v in p.properties.items() %}{% if v.description %}{{ '  ' * depth }}// {{ v.description }}{{ '\\n' }}{% endif %}{{ '  ' * depth }}{{ k }}{{ '' if k in (p.required or []) else '?' }}: {{ schema(v, depth + 1) }},{{ '\\n' }}{% endfor %}{{ '  ' * (depth - 1) }} }
{%- elif p.type in ['integer', 'number'] %}number{% else %}{{ p.type | default('any') }}{% endif %}
{%- endmacro -%}
[gMASK]<sop>
{%- if tools is defined and tools | length > 0 %}<|system|>
{% for t in tools %}type {{ t.function.name }} = (_: {{ schema(t.function.parameters) }}) => any;
{% endfor %}
{%- endif %}
{%- for m in messages %}{% if m.role == 'system' and loop.first and not tools %}<|system|>
{{ m.content }}{% elif m.role in ('user', 'assistant', 'tool') %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>
{{ m.content if m.content is string else (m.content | map(attribute='text', default='') | join('\\n') if m.content else '') }}
{%- for c in m.tool_calls or [] %}{{ c.function.name }}
{{ c.function.arguments | tojson(indent=2) }}{% endfor %}{% endif %}{% endfor -%}
{% if add_generation_prompt %}<|assistant|>{% endif %}
""",
    # SmolLM 3, Jamba: what the call is given beside the messages; blocks marked for training.
    "marked": """
{% set mode = 'off' if enable_thinking is defined and not enable_thinking else 'on' %}
{{ '<|im_start|>system\\nMode: ' ~ mode ~ ('\\n' ~ system_add if system_add) ~ '\\n' }}
{%- for m in messages | selectattr('role', 'equalto', 'system') %}{{ m.content }}{{ '\\n' }}{% endfor %}
{%- if tools %}{% for t in tools | sort(attribute='function.name', reverse=true) %}{{ t.function | tojson(sort_keys=true) }}
{% endfor %}{% endif %}<|im_end|>
{% for m in messages | rejectattr('role', 'equalto', 'system') %}
{% if m.role == 'assistant' %}
<|im_start|>assistant
{% generation %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | items | map('join', '=') | join('&') }}{% endfor %}<|im_end|>{% endgeneration %}

{% else %}
<|im_start|>{{ m.role }}{{ ' name=' ~ m.name if m.name is defined }}
{{ m.content if m.content is string else m.content | selectattr('type', 'in', ['text']) | map(attribute='text') | join }}<|im_end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    # GPT-OSS: channels, JSON of arguments, breaks out of loops.
    "channels": """
{%- set developer = (messages | first).content if (messages | first).role in ['developer', 'system'] else '' -%}
<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>
{%- if developer or tools %}<|start|>developer<|message|>{{ developer }}
{%- if tools %}{{ '\\n\\nnamespace functions {' }}{% for t in tools %}{{ '\\n// ' ~ t.function.description ~ '\\ntype ' ~ t.function.name ~ ' = ' ~ (t.function.parameters.properties | length > 0) }}{% endfor %}{{ '\\n}' }}{% endif %}<|end|>{% endif %}
{%- set last = namespace(name=none) -%}
{%- for m in messages %}
{%- if loop.first and m.role in ['developer', 'system'] %}{% continue %}{% endif %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- set call = m.tool_calls[0].function %}{% set last.name = call.name %}
{{- '<|start|>assistant to=functions.' ~ call.name ~ '<|channel|>commentary json<|message|>' ~ call.arguments | tojson ~ '<|call|>' }}
{%- elif m.role == 'tool' %}{% if last.name is none %}{{ raise_exception('a result without a call') }}{% endif %}
{{- '<|start|>functions.' ~ last.name ~ ' to=assistant<|message|>' ~ m.content | tojson ~ '<|end|>' }}
{%- elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ ('<|return|>' if loop.last else '<|end|>') }}
{%- else %}{{ '<|start|>' ~ m.role ~ '<|message|>' ~ (m.content if m.content is string else m.content | tojson) ~ '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}""",
    # Vicuna, Llama 2: turns as a play's.
    "play": """{% if messages[0].role == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0].content.strip() + '\n\n' %}{% else %}{% set loop_messages = messages %}{% set system = '' %}{% endif %}{{ bos_token + system }}{% for m in loop_messages %}{% if m.role == 'user' %}{{ 'USER: ' + (m.content.strip() if m.content is string else m.content[-1].text.strip()) + '\n' }}{% elif m.role == 'assistant' %}{{ 'ASSISTANT: ' + (m.content or '').strip() + eos_token + '\n' }}{% endif %}{% if loop.last and m.role == 'user' and add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}{% endfor %}""",
}

WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather at a place, \"now\" & <then>.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "description": "Of a town"}, "days": {"type": "integer", "default": 1},
                                     "unit": {"type": "string", "enum": ["°C", "°F"]}, "at": {"anyOf": [{"type": "number"}, {"type": "string"}]}},
    "required": ["place"]}}}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Search", "parameters": {
    "type": "object", "required": [], "properties": {"words": {"type": "array", "items": {"type": "string"}}, "how": {
        "type": "object", "properties": {"exact": {"type": "boolean"}}, "required": ["exact"]}, "nothing": {}}}}}
EMPTY = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}, "required": []}}}


def call(name, k=0, **arguments):
    return {"type": "function", "id": f"call0000{k}", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def said(text, *calls):
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


def result(text, k=0):
    return {"role": "tool", "tool_call_id": f"call0000{k}", "name": "weather", "content": text}


SYSTEM = {"role": "system", "content": " Be brief.\n"}
CHATS = [
    ([user("Hello")], None, {}),
    ([SYSTEM, user(" What is 1 < 2 & \"3\"?\n"), said("True."), user("größer? 今日 🙂")], None, {"enable_thinking": False}),
    ([user("Weather?")], [WEATHER], {}),
    ([SYSTEM, user("Weather in Köln?"), said("", call("weather", place="Köln", days=2)), result('{"t": 12.5}')], [WEATHER, SEARCH], {}),
    ([user("Two"), said("I look.", call("weather", place="A \"b\" \\ \n"), call("search", 1, words=["x", "ü"], how={"exact": True}, nothing=None)),
      result("1"), result("[2]", 1), said("Done.")], [SEARCH, WEATHER, EMPTY], {}),
    ([user("a"), said("<think>\nhm\n</think>\n\nfirst"), user("b"), said("<think>\nhm 2\n</think>\n\nsecond")], None, {"reasoning_effort": "high"}),
    ([user([{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "this? "}])], None, {}),
    ([user("a"), user("b")], None, {"controls": {"length": "short", "b": [1, 2.5, 1e20, True, None]}}),
    ([SYSTEM, SYSTEM, user("d\r\ne"), said(None, call("now"))], [EMPTY], {"documents": [{"title": "T", "text": "a long text of many words"}, {"text": "b"}],
                                                                         "system_add": "more"}),
    ([user("x"), said("y", call("search", words=[], how={})), result("z" * 10), user("w"), said("v"), result("u")], [SEARCH], {"html": True}),
]
