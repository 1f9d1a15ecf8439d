package chaos

import (
	"testing"

	"skiff/test/cluster"
)

// Each test runs in namespaces of its own, because some have several hosts.
func TestMain(m *testing.M) {
	cluster.Main(m, cluster.Needs{Images: []string{"busybox", "pause"}, Programs: []string{"etcd"}})
}
