"""The clients of OpenAI's protocol against moth serve: openai, litellm and langchain-openai, with a tiny model of random weights."""
PACKAGES = "openai==3.57.0 litellm==1.110.2 langchain-openai==1.7.4"
MEETS = ("everyday calls of each: chats, whole, as streams, in parallel, of several answers; log probabilities; tools, chosen and with "
         "results; structured outputs by pydantic; completions; embeddings; responses, streams and tools of theirs; errors by class and code")
LIMITS = ("refused by name: `best_of`, `suffix`, `store`, images, patterns in schemas, `previous_response_id` of "
          "responses, tools of the server's own; 404: audio, files, moderations")

import asyncio
import json
import os
import shutil
import socket
import subprocess
import time
import warnings

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
warnings.simplefilter("ignore")

import litellm
import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

import moth

litellm.suppress_debug_info = True
TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<tool_call></tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
model = os.path.join(moth.folder, "model")
shutil.copytree(os.path.join(moth.HERE, "../../llm/fixtures/llama"), model, dirs_exist_ok=True)
config = json.load(open(model + "/config.json"))
json.dump({**config, "max_position_embeddings": 4096}, open(model + "/config.json", "w"))
json.dump({"chat_template": TEMPLATE}, open(model + "/tokenizer_config.json", "w"))
KEY = "a-long-word"
with open(os.open(moth.folder + "/token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
    f.write(KEY)
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
server = subprocess.Popen([os.environ["MOTH_PROGRAM"], "serve", f"lm={model}/", "--port", str(port), "--token-file", moth.folder + "/token"],
                          stdout=subprocess.DEVNULL)
base = f"http://127.0.0.1:{port}/v1"
counts = {"openai": 0, "litellm": 0, "langchain-openai": 0, "errors": 0}


def works(of, name, call, holds=bool):
    """A call whose result must hold."""
    try:
        result = call()
        moth.expect(holds(result), f"{of}, {name}: {result}")
    except Exception as e:
        moth.expect(False, f"{of}, {name}: {type(e).__name__}: {e}")
    counts[of] += 1


def fails(name, call, kind, code, part=""):
    """A call that must raise an error of a class, with a code."""
    try:
        moth.expect(False, f"{name}: no error, but {call()}")
    except kind as e:
        moth.expect(getattr(e, "code", None) == code and part in str(e), f"{name}: {getattr(e, 'code', None)}: {e}")
    except Exception as e:
        moth.expect(False, f"{name}: {type(e).__name__}: {e}")
    counts["errors"] += 1


class Step(BaseModel):
    """A step."""

    name: str = Field(max_length=6)
    n: int


class Plan(BaseModel):
    steps: list[Step] = Field(max_length=2)
    ok: bool


PARAMETERS = {"type": "object", "properties": {"place": {"type": "string", "maxLength": 5}, "sure": {"type": "boolean"}},
              "required": ["place", "sure"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
TOOL = {"type": "function", "function": {"name": "weather"}}
HELLO = [{"role": "user", "content": "hello there"}]
LONG = [{"role": "user", "content": "a b " * 3000}]
FEW, MANY = {"max_tokens": 6}, {"max_tokens": 1500, "seed": 3}


def with_openai():
    client = openai.OpenAI(base_url=base, api_key=KEY, max_retries=0)

    def chat(messages=HELLO, **o):
        return client.chat.completions.create(model="lm", messages=messages, **{**FEW, **o})

    def complete(prompt="a b", **o):
        return client.completions.create(model="lm", prompt=prompt, **{**FEW, **o})

    def respond(text="hi", **o):
        return client.responses.create(model="lm", input=text, **{"max_output_tokens": 20, **o})

    def check(name, call, holds=bool):
        works("openai", name, call, holds)

    check("models", lambda: [m.id for m in client.models.list()], ["lm"].__eq__)
    check("model", lambda: client.models.retrieve("lm").id, "lm".__eq__)
    check("chat", chat, lambda r: r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 6)
    check("same seed", lambda: [chat(seed=7, temperature=0.9).choices[0].message.content for _ in range(2)], lambda r: r[0] == r[1])
    check("several", lambda: chat(n=3, seed=1, temperature=0.7, top_p=0.9).choices, lambda r: [c.index for c in r] == [0, 1, 2])
    check("max_completion_tokens", lambda: client.chat.completions.create(model="lm", messages=HELLO, max_completion_tokens=5).usage.completion_tokens, (5).__eq__)
    check("end", lambda: chat(logit_bias={"1": 100}, max_tokens=50).choices[0].finish_reason, "stop".__eq__)
    check("stop", lambda: chat(stop=["e", "a", "o"], max_tokens=300, seed=2).choices[0], lambda r: r.finish_reason == "stop" and "a" not in r.message.content)
    check("logprobs", lambda: chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content, lambda r: len(r) == 6 and len(r[0].top_logprobs) == 3)
    check("penalties", lambda: chat(logit_bias={"5": -100}, frequency_penalty=0.5, presence_penalty=0.5, user="me", metadata={"a": "b"}, store=False))
    check("parts", lambda: chat([{"role": "developer", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]))
    check("stream", lambda: list(chat(stream=True, stream_options={"include_usage": True})), lambda r: r[-1].usage.completion_tokens == 6)
    whole = chat(seed=5, max_tokens=30).choices[0].message.content
    check("stream is the whole", lambda: "".join(c.choices[0].delta.content or "" for c in chat(seed=5, max_tokens=30, stream=True)), whole.__eq__)

    def helper():
        with client.chat.completions.stream(model="lm", messages=HELLO, logit_bias={"1": 100}) as events:
            return [e.type for e in events] and events.get_final_completion().choices[0].finish_reason

    check("stream's helper", helper, "stop".__eq__)
    check("tool", lambda: chat(tools=TOOLS, tool_choice=TOOL, **MANY).choices[0].message.tool_calls[0].function, lambda r: set(json.loads(r.arguments)) == {"place", "sure"})
    check("tools", lambda: chat(tools=TOOLS, tool_choice="required", **MANY).choices[0], lambda r: r.finish_reason == "tool_calls" and r.message.tool_calls)
    check("tools, none", lambda: chat(tools=TOOLS, tool_choice="none", parallel_tool_calls=False).choices[0].message.tool_calls is None)
    check("tools as a stream", lambda: [c for p in chat(tools=TOOLS, tool_choice=TOOL, stream=True, **MANY) for c in p.choices[0].delta.tool_calls or []],
          lambda r: r[0].function.name == "weather" and json.loads("".join(c.function.arguments or "" for c in r)))

    def result():
        said = chat(tools=TOOLS, tool_choice=TOOL, **MANY).choices[0].message
        return chat(HELLO + [said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "sunny"}], tools=TOOLS).usage

    check("tool's result", result)
    parse = client.chat.completions.parse
    check("json_object", lambda: chat(response_format={"type": "json_object"}, **MANY).choices[0],
          lambda r: r.finish_reason == "length" or isinstance(json.loads(r.message.content), dict))
    check("parse", lambda: parse(model="lm", messages=HELLO, response_format=Step, **MANY).choices[0].message.parsed, lambda r: isinstance(r, Step))
    check("parse, nested", lambda: parse(model="lm", messages=HELLO, response_format=Plan, **MANY).choices[0].message.parsed, lambda r: isinstance(r, Plan))
    check("parse, tools", lambda: parse(model="lm", messages=HELLO, tools=[openai.pydantic_function_tool(Step)], tool_choice="required", **MANY)
          .choices[0].message.tool_calls[0].function.parsed_arguments, lambda r: isinstance(r, Step))
    check("completions", lambda: complete(["a", "b"], n=2, logprobs=2, echo=True).choices, lambda r: len(r) == 4 and r[0].text.startswith("a"))
    check("completion of ids", lambda: complete([5, 6, 7]).usage.prompt_tokens, (3).__eq__)
    check("completions as a stream", lambda: list(complete(stream=True)), lambda r: r[-1].choices[0].finish_reason == "length")
    check("embeddings", lambda: client.embeddings.create(model="lm", input=["a", "b"]).data, lambda r: len(r) == 2 and len(r[1].embedding) == 16)
    check("embeddings, cut", lambda: client.embeddings.create(model="lm", input=[[1, 2], [3]], dimensions=3, encoding_format="float").data[0].embedding, lambda r: len(r) == 3)
    check("responses", respond, lambda r: r.status == "incomplete" and r.usage.output_tokens == 20)
    check("responses as a stream", lambda: [e.type for e in respond(stream=True)], lambda r: r[0] == "response.created" and r[-1] == "response.incomplete")
    check("responses, logprobs", lambda: respond(top_logprobs=2, include=["message.output_text.logprobs"]).output[0].content[0].logprobs,
          lambda r: len(r) == 20 and len(r[0].top_logprobs) == 2)
    check("responses, parse", lambda: client.responses.parse(model="lm", input="hi", text_format=Step, max_output_tokens=1500).output_parsed, lambda r: isinstance(r, Step))
    flat = [{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}]

    def call_and_result():
        said = respond(tools=flat, tool_choice="required", max_output_tokens=1500)
        back = [{"role": "user", "content": "hi"}, *said.output, {"type": "function_call_output", "call_id": said.output[0].call_id, "output": "1"}]
        return respond(back, tools=flat).status

    check("responses, tools", call_and_result)

    async def parallel():
        many = openai.AsyncOpenAI(base_url=base, api_key=KEY, max_retries=0)
        answers = await asyncio.gather(*[many.chat.completions.create(model="lm", messages=HELLO, seed=5, max_tokens=30) for _ in range(8)])
        return {a.choices[0].message.content for a in answers}

    check("in parallel", lambda: asyncio.run(parallel()), {whole}.__eq__)

    fails("model", lambda: client.chat.completions.create(model="x", messages=HELLO), openai.NotFoundError, "model_not_found", "'x'")
    fails("retrieve", lambda: client.models.retrieve("x"), openai.NotFoundError, "model_not_found", "'x'")
    fails("key", lambda: client.with_options(api_key="another-word").models.list(), openai.AuthenticationError, "invalid_api_key")
    fails("long chat", lambda: chat(LONG), openai.BadRequestError, "context_length_exceeded", "4096")
    fails("long ids", lambda: complete([5] * 5000), openai.BadRequestError, "context_length_exceeded", "4096")
    fails("long text", lambda: client.embeddings.create(model="lm", input="a b " * 3000), openai.BadRequestError, "context_length_exceeded", "4096")
    fails("temperature", lambda: chat(temperature=9), openai.BadRequestError, None, "temperature")
    fails("unknown field", lambda: chat(extra_body={"frob": 1}), openai.BadRequestError, "unsupported_parameter", "frob")
    fails("best_of", lambda: complete(best_of=2), openai.BadRequestError, "unsupported_parameter", "best_of")
    fails("suffix", lambda: complete(suffix="a"), openai.BadRequestError, "unsupported_parameter", "suffix")
    fails("store", lambda: chat(store=True), openai.BadRequestError, "unsupported_parameter", "store")
    fails("image", lambda: chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]), openai.BadRequestError, None, "content[0]")
    fails("pattern", lambda: chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "a+"}}}),
          openai.BadRequestError, "unsupported_parameter", "pattern")
    fails("tool_choice", lambda: chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "zz"}}), openai.BadRequestError, None, "'zz'")
    fails("previous_response_id", lambda: respond(previous_response_id="resp_1"), openai.BadRequestError, None, "previous_response_id")
    fails("web_search", lambda: respond(tools=[{"type": "web_search"}]), openai.BadRequestError, None, "tools[0]")
    for name, call in {"audio": lambda: client.audio.speech.create(model="lm", voice="alloy", input="x"), "files": client.files.list,
                       "moderations": lambda: client.moderations.create(input="x"), "responses/resp_1": lambda: client.responses.retrieve("resp_1")}.items():
        fails(name, call, openai.NotFoundError, None, name)


def with_litellm():
    to = dict(model="openai/lm", api_base=base, api_key=KEY, max_retries=0)

    def chat(**o):
        return litellm.completion(**{"messages": HELLO, **to, **FEW, **o})

    def check(name, call, holds=bool):
        works("litellm", name, call, holds)

    check("chat", lambda: chat().usage.completion_tokens, (6).__eq__)
    check("stream", lambda: list(chat(stream=True, stream_options={"include_usage": True})), lambda r: any(getattr(c, "usage", None) for c in r))
    check("tools", lambda: chat(tools=TOOLS, tool_choice="required", **MANY).choices[0].message.tool_calls[0].function.name)
    check("structured", lambda: Step.model_validate_json(chat(response_format=Step, **MANY).choices[0].message.content))
    check("logprobs", lambda: chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content, lambda r: len(r) == 6)
    check("completion", lambda: litellm.text_completion(prompt="a b", max_tokens=4, **{**to, "model": "text-completion-openai/lm"}).choices[0].finish_reason, "length".__eq__)
    check("embeddings", lambda: litellm.embedding(input=["a", "b"], **to).data, lambda r: len(r) == 2)
    check("async", lambda: asyncio.run(litellm.acompletion(messages=HELLO, **to, **FEW)).id)
    check("batch", lambda: litellm.batch_completion(messages=[HELLO, HELLO], **to, **FEW), lambda r: len(r) == 2 and all(x.choices for x in r))
    check("responses", lambda: litellm.responses(input="hi", max_output_tokens=10, **to).status, "incomplete".__eq__)
    check("responses as a stream", lambda: list(litellm.responses(input="hi", max_output_tokens=10, stream=True, **to)))
    for name, call, kind in (("model", lambda: chat(model="openai/none"), litellm.NotFoundError),
                             ("key", lambda: chat(api_key="another-word"), litellm.AuthenticationError),
                             ("long chat", lambda: chat(messages=LONG), litellm.ContextWindowExceededError),
                             ("temperature", lambda: chat(temperature=9), litellm.BadRequestError)):
        try:
            moth.expect(False, f"litellm, {name}: no error, but {call()}")
        except kind:
            pass
        counts["errors"] += 1


@tool
def weather(place: str, sure: bool) -> str:
    """The weather at a place."""
    return "sunny at " + place


def with_langchain():
    to = dict(model="lm", base_url=base, api_key=KEY, max_retries=0)
    few, many = ChatOpenAI(**FEW, **to), ChatOpenAI(**MANY, **to)

    def check(name, call, holds=bool):
        works("langchain-openai", name, call, holds)

    check("invoke", lambda: few.invoke("hello").usage_metadata["output_tokens"], (6).__eq__)
    check("messages", lambda: few.invoke([SystemMessage("x"), HumanMessage("y"), AIMessage("z"), HumanMessage("w")]).response_metadata["finish_reason"], "length".__eq__)
    check("stream", lambda: list(few.stream("hello")))
    check("batch", lambda: few.batch(["a", "b", "c"]), lambda r: len(r) == 3)
    check("async", lambda: asyncio.run(few.ainvoke("hello")).id)
    for choice in ("required", "weather", "any"):
        check("tools, " + choice, lambda: many.bind_tools([weather], tool_choice=choice).invoke("hello").tool_calls[0]["args"], lambda r: set(r) == {"place", "sure"})

    def loop():
        said = many.bind_tools([weather], tool_choice="any", strict=True).invoke("hello")
        one = said.tool_calls[0]
        return few.bind_tools([weather]).invoke([HumanMessage("hello"), said, ToolMessage(weather.invoke(one["args"]), tool_call_id=one["id"])]).id

    check("tool's result", loop)
    for method in ("json_schema", "function_calling"):
        check("structured by " + method, lambda: many.with_structured_output(Step, method=method).invoke("hello"), lambda r: isinstance(r, Step))
    check("json_mode", lambda: many.with_structured_output(Step, method="json_mode", include_raw=True).invoke("json"), lambda r: "raw" in r)
    check("logprobs", lambda: few.bind(logprobs=True).invoke("x").response_metadata["logprobs"]["content"], lambda r: len(r) == 6)
    check("responses", lambda: ChatOpenAI(use_responses_api=True, max_tokens=20, **to).invoke("x").response_metadata["status"], "incomplete".__eq__)
    check("responses as a stream", lambda: list(ChatOpenAI(use_responses_api=True, max_tokens=20, **to).stream("x")))
    check("embeddings", lambda: OpenAIEmbeddings(check_embedding_ctx_length=False, **to).embed_documents(["a", "b"]), lambda r: len(r) == 2)
    check("completion", lambda: OpenAI(max_tokens=5, **to).invoke("a"))
    check("completion as a stream", lambda: list(OpenAI(max_tokens=5, **to).stream("a")))
    fails("langchain, model", lambda: ChatOpenAI(**{**to, "model": "zz"}).invoke("a"), openai.NotFoundError, "model_not_found", "'zz'")


try:
    client = openai.OpenAI(base_url=base, api_key=KEY, max_retries=0)
    for _ in range(400):
        try:
            if client.models.list().data:
                break
        except openai.APIError:
            pass
        time.sleep(0.05)
    with_openai()
    with_litellm()
    with_langchain()
finally:
    server.terminate()
    server.wait(30)
errors = counts.pop("errors")
moth.end(", ".join(f"{n} calls of {k}" for k, n in counts.items()) + f"; {errors} errors; the server ended with {server.returncode}")
