// Command shim is containerd-shim-runc-v2, which holds the containers of one pod, with a garbage collector that is less eager.
//
// containerd's own main lets the heap grow by 40 % between two collections. For the few megabytes that a shim has this means to collect
// again and again until its pod runs: a twelfth of all the CPU time of a pod's start and end. What has become garbage is given back all
// the same: the shim collects and frees every 30 seconds.
package main

import (
	"context"
	"runtime/debug"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

// growth is how much the heap may grow, in percent: to 16 MB, since Go begins at 4 MB with 100 %.
const growth = 400

func main() {
	// A plugin, because the shim sets 40 % itself just before it loads them.
	registry.Register(&plugin.Registration{
		Type: plugins.InternalPlugin, ID: "collector",
		InitFn: func(*plugin.InitContext) (any, error) { return debug.SetGCPercent(growth), nil },
	})
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
}
