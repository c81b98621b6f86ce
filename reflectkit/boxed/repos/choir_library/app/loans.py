"""Lending and returning copies at the library desk.

A loan ties one stamped copy to one singer. The length of a loan and the
number of copies come from settings.yaml; the rules about who may borrow
before a concert are written here because they never change.
"""

from dataclasses import dataclass
from datetime import date, timedelta

FREEZE_DAYS_BEFORE_CONCERT = 3
RENEWALS_ALLOWED = 2
DEPOSIT_FOR_GUESTS = 15.0


class LoanRefused(Exception):
    """Raised with a sentence that can be read out at the desk."""


@dataclass
class Loan:
    """One copy in the hands of one singer."""

    copy_id: str
    member_id: str
    lent_on: date
    renewals: int = 0

    def due(self, loan_days):
        """Day on which the copy is due; each renewal adds half a loan."""
        extra = self.renewals * (loan_days // 2)
        return self.lent_on + timedelta(days=loan_days + extra)


def check_may_borrow(open_loans, limit, next_concert, today):
    """Refuse a loan when the singer is at the limit or a concert is near.

    In the last days before a concert nothing leaves the hall, so that every
    box is complete on the night.
    """
    if len(open_loans) >= limit:
        raise LoanRefused("Please bring something back first.")
    if 0 <= (next_concert - today).days <= FREEZE_DAYS_BEFORE_CONCERT:
        raise LoanRefused("Nothing leaves the hall this close to a concert.")


def renew(loan, waiting):
    """Renew a loan unless somebody waits for the work or the limit is reached."""
    if waiting:
        raise LoanRefused("Another singer is waiting for this work.")
    if loan.renewals >= RENEWALS_ALLOWED:
        raise LoanRefused("This copy was renewed twice already.")
    loan.renewals += 1
    return loan


def guest_deposit(copies):
    """Deposit of a guest singer: a full one for the first copy, half for more."""
    if copies <= 0:
        return 0.0
    return DEPOSIT_FOR_GUESTS * (1 + 0.5 * (copies - 1))
