"""Reading a fleet data set (contracts section 4) as its rigs would have sent it."""
