package progress_test

import (
	"testing"

	"trainmaster/etcdstore/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }
