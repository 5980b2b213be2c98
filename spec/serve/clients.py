"""Clients that are not ours against a server of clients_spec.lua: clients.py triton|openai PORT. Prints "ok", or
"missing NAME" where the package is not there."""
import sys

which, port = sys.argv[1], int(sys.argv[2])


def triton():
    import numpy as np
    import tritonclient.http as http
    client = http.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("net")
    about = client.get_model_metadata("net")
    assert about["inputs"] == [{"name": "x1", "datatype": "FP32", "shape": [-1, 4]}], about
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    answers = []
    for binary in (False, True):
        given = http.InferInput("x1", [2, 4], "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        asked = [http.InferRequestedOutput("y1", binary_data=binary)]
        answers.append(client.infer("net", [given], outputs=asked, request_id="7").as_numpy("y1"))
    assert answers[0].shape == (2, 4) and np.array_equal(answers[0], answers[1])
    assert np.allclose(answers[0], 2 * x), answers[0]
    given = http.InferInput("x1", [1, 5], "FP32")
    given.set_data_from_numpy(np.zeros((1, 5), np.float32))
    try:
        client.infer("net", [given])
        raise SystemExit("a wrong shape was accepted")
    except http.InferenceServerException as e:
        assert "expected [-1,4], got [1,5]" in str(e), e
    pending = [client.async_infer("net", [http_input(http, np, i)]) for i in range(16)]
    for i, p in enumerate(pending):
        assert p.get_result().as_numpy("y1")[0, 0] == 2 * i


def http_input(http, np, i):
    given = http.InferInput("x1", [1, 4], "FP32")
    given.set_data_from_numpy(np.full((1, 4), i, np.float32))
    return given


def openai():
    import openai as o
    client = o.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="a-long-word", max_retries=0)
    assert [m.id for m in client.models.list()] == ["echo"]
    r = client.completions.create(model="echo", prompt="one two three", max_tokens=2)
    assert r.choices[0].text == "one two " and r.choices[0].finish_reason == "length", r
    said = [{"role": "user", "content": "good morning"}]
    r = client.chat.completions.create(model="echo", messages=said)
    assert r.choices[0].message.content == "good morning" and r.usage.completion_tokens == 2, r
    parts = [p.choices[0].delta.content or "" for p in
             client.chat.completions.create(model="echo", messages=said, stream=True)]
    assert "".join(parts) == "good morning" and len(parts) >= 2, parts
    r = client.responses.create(model="echo", input="good morning", instructions="be")
    assert r.output_text == "good morning" and r.status == "completed" and r.usage.output_tokens == 2, r
    events = list(client.responses.create(model="echo", input="good morning", stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "good morning", events
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "good morning", events
    try:
        client.embeddings.create(model="echo", input="a")
        raise SystemExit("an engine without vectors gave one")
    except o.BadRequestError:
        pass
    stream = client.completions.create(model="echo", prompt="word " * 50000, stream=True)
    for _, piece in zip(range(3), stream):
        assert piece.choices[0].text == "word ", piece
    stream.close()
    for wrong, kind in ((dict(model="none", prompt="a"), o.NotFoundError),
                        (dict(model="echo", prompt="a", suffix="b"), o.BadRequestError)):
        try:
            client.completions.create(**wrong)
            raise SystemExit(f"{wrong} was accepted")
        except kind:
            pass
    try:
        client.with_options(api_key="another-word").models.list()
        raise SystemExit("a wrong key was accepted")
    except o.AuthenticationError:
        pass


try:
    {"triton": triton, "openai": openai}[which]()
    print("ok")
except (ImportError, RuntimeError) as e:  # tritonclient raises the second where it was installed without [http]
    if not isinstance(e, ImportError) and "http support" not in str(e):
        raise
    print("missing", e)
