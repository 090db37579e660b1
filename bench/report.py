"""What a comparison found: ratios of pairs, their spread, and the table."""

import statistics

HEAD = ("comparison", "wcache", "against", "ratio (quartiles; all)", "goal", "of the limit")


class Comparison:
    """Two series of seconds measured in turns, and where there is one a third: the limit.

    A ratio is `against / ours` of one round, so that above 1 means sooner than what it is compared to. `nbytes` are
    those of one pass, where a rate says more than the seconds do."""

    def __init__(self, name, ours, against, nbytes=None, goal=None, limit=None, limit_text="", notes=()):
        self.name, self.nbytes, self.goal, self.notes = name, nbytes, goal, list(notes)
        self.ours, self.against, self.limit = ours, against, limit or against
        self.limit_text = limit_text or self.limit.label

    def ratios(self, other):
        return [b / a for a, b in zip(self.ours.seconds, other.seconds, strict=True)]

    def row(self):
        ratio, limit = spread(self.ratios(self.against)), spread(self.ratios(self.limit))
        goal = "-"
        if self.goal:
            goal = f"{self.goal:g} {'met' if ratio['median'] >= self.goal else 'missed'}"
        quartiles = f"{figure(ratio['low'])}..{figure(ratio['high'])}"
        return (self.name, self.shown(self.ours), f"{self.shown(self.against)}: {self.against.label}",
                f"{figure(ratio['median'])} ({quartiles}; {figure(ratio['min'])}..{figure(ratio['max'])})", goal,
                f"{figure(limit['median'])}: {self.limit_text}")

    def shown(self, series):
        return rate(self.nbytes, series.seconds)

    def json(self):
        out = {"name": self.name, "nbytes": self.nbytes, "goal": self.goal, "ratio": spread(self.ratios(self.against)),
               "ours": self.ours.json(), "against": self.against.json(), "notes": self.notes,
               "limit": {"what": self.limit_text, "ratio": spread(self.ratios(self.limit)), **self.limit.json()}}
        if self.goal:
            out["met"] = out["ratio"]["median"] >= self.goal
        return out


class Series:
    """What was measured, for a person, and the seconds of each round."""

    def __init__(self, label, seconds):
        self.label, self.seconds = label, list(seconds)

    def json(self):
        return {"label": self.label, "seconds": self.seconds}


def spread(values):
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "min": min(values), "max": max(values)}


def rate(nbytes, seconds):
    """The median, for a person: of passes over `nbytes`, or of calls."""
    median = statistics.median(seconds)
    if nbytes:
        return f"{nbytes / median / 1e9:.3g} GB/s"
    return f"{median * 1e3:.3g} ms" if median >= 1e-3 else f"{median * 1e6:.3g} us"


def figure(ratio):
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def table(comparisons):
    """In Markdown, aligned for a terminal."""
    rows = [HEAD, *(c.row() for c in comparisons)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    rows.insert(1, tuple("-" * w for w in widths))
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |" for row in rows]
    return "\n".join(lines)


def notes(comparisons):
    lines = [f"- {c.name}, against {c.against.label}: {'; '.join(c.notes)}" for c in comparisons if c.notes]
    return ["", *lines] if lines else []
