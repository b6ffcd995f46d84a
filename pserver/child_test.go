package pserver_test

const childEnv = "PSERVER_TEST_CHILD"

func childMain() {}
