import io

from specdraft.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_whole_lines_now_and_then():
    now, out = [0.0], io.StringIO()
    with Progress(100, 20, name="answer", stream=out, clock=lambda: now[0], seconds=30) as bar:
        for second in range(1, 61):
            now[0] = float(second)
            bar.update(1, "9 tokens/s")
    lines = out.getvalue().splitlines()
    assert len(lines) == 3  # the start, and half a minute each; the end was said already
    assert "\r" not in out.getvalue()
    assert lines[0].startswith("answer:  20% 20/100")
    assert "50/100 [00:30<00:50,  1.00row/s, 9 tokens/s]" in lines[1]  # what was done before is not part of the rate
    assert "80/100" in lines[2]


def test_the_end_is_said_once_and_silence_is_kept():
    out = io.StringIO()
    with Progress(3, name="answer", stream=out, clock=lambda: 0.0) as bar:
        bar.update(3)
    assert [line.split("[")[0] for line in out.getvalue().splitlines()] == ["answer:   0% 0/3 ", "answer: 100% 3/3 "]
    silent = io.StringIO()
    with Progress(3, name="answer", stream=silent, shown=False) as bar:
        bar.update(3)
    assert silent.getvalue() == ""


def test_a_terminal_gets_a_bar():
    out = Terminal()
    with Progress(3, name="answer", stream=out) as bar:
        bar.update(3, "note")
    assert "\r" in out.getvalue()
    assert "3/3" in out.getvalue()
    assert bar.done == 3
