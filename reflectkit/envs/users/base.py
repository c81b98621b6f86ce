from reflectkit.core.users import User as User
from reflectkit.core.users import UserTurn as UserTurn

LONGEST = 2000
