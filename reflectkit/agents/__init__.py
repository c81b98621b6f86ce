"""Who acts: scripted teachers, and the two players (a frozen reflector and a policy)."""
