"""Hours of telescope time that a member has used and may still use.

Time lost to clouds or to a fault is given back in part. Time on targets of
opportunity, such as a new comet, is taken from the common pot.
"""

from collections import defaultdict

COMMON_POT_HOURS = 20.0
CLOUD_REFUND = 0.75
FAULT_REFUND = 1.0
TRADE_LIMIT_HOURS = 5.0


def charged(entries):
    """Hours charged to each member.

    An entry is (member, hours, outcome, opportunity). The outcome is one of
    good, cloud and fault.
    """
    refund = {"good": 0.0, "cloud": CLOUD_REFUND, "fault": FAULT_REFUND}
    total = defaultdict(float)
    for member, hours, outcome, opportunity in entries:
        if not opportunity:
            total[member] += hours * (1.0 - refund[outcome])
    return dict(total)


def pot_left(entries):
    """Hours left in the common pot of 20; it is filled up at midsummer."""
    used = sum(hours for _, hours, _, opportunity in entries if opportunity)
    return max(0.0, COMMON_POT_HOURS - used)


def trade(balance, giver, taker, hours):
    """Pass hours from one member to another, at most five in a lunar month."""
    if hours > TRADE_LIMIT_HOURS:
        raise ValueError("at most five hours may be traded")
    if balance[giver] < hours:
        raise ValueError("the giver has not so many hours")
    balance[giver] -= hours
    balance[taker] = balance.get(taker, 0.0) + hours
    return balance
