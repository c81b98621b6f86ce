"""The protocol of users, where envs look for it."""

from reflectkit.core.users import User as User
from reflectkit.core.users import UserTurn as UserTurn

LONGEST = 2000
