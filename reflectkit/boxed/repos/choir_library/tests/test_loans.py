"""Tests of the lending rules."""

from datetime import date

from app.loans import Loan, guest_deposit


def test_renewal_adds_half_a_loan():
    loan = Loan("V-HOL-01/001", "S014", date(2024, 1, 1), renewals=1)
    assert (loan.due(35) - loan.lent_on).days == 52


def test_guest_deposit_second_copy_is_half():
    assert guest_deposit(2) == 22.5
