"""Weekly report about orders: who bought what, who is drifting away."""

from collections import defaultdict

DRIFT_WEEKS = 5
DRIFT_DROP = 0.30
TOP_COUNT = 8
SMALL_CUSTOMER_PIECES = 40


def pieces_by_customer(lines):
    """Add up pieces per customer and product."""
    table = defaultdict(lambda: defaultdict(int))
    for line in lines:
        table[line.customer][line.product] += line.pieces
    return table


def drifting(history):
    """Customers whose last week is 30 percent under their own five-week mean.

    `history` maps a customer to weekly piece counts, oldest first. Customers
    with a mean under 40 pieces are left out; for them one cake is noise.
    """
    found = []
    for customer, weeks in history.items():
        if len(weeks) <= DRIFT_WEEKS:
            continue
        mean = sum(weeks[-DRIFT_WEEKS - 1:-1]) / DRIFT_WEEKS
        if mean < SMALL_CUSTOMER_PIECES:
            continue
        if weeks[-1] < mean * (1 - DRIFT_DROP):
            found.append((customer, round(weeks[-1] / mean, 2)))
    return sorted(found, key=lambda pair: pair[1])


def top_products(lines):
    """The eight best sellers by pieces, ties in alphabetical order."""
    sums = defaultdict(int)
    for line in lines:
        sums[line.product] += line.pieces
    return sorted(sums.items(), key=lambda kv: (-kv[1], kv[0]))[:TOP_COUNT]


def render(lines, history):
    """Plain text that goes to Wenda every Sunday evening."""
    out = ["Orders of the week", ""]
    for product, pieces in top_products(lines):
        out.append(f"{product:<24}{pieces:>8}")
    lost = drifting(history)
    if lost:
        out += ["", "Please telephone:"]
        out += [f"  {name} (at {share:.0%} of usual)" for name, share in lost]
    return "\n".join(out)
