"""Print a small forecast."""

from analysis.demand_forecast import forecast, tank_target

if __name__ == "__main__":
    demand = forecast([520, 515, 530, 500], 26.0)
    print(demand, tank_target(demand))
