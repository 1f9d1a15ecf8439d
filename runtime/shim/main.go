// Command shim is containerd-shim-runc-v2, the parent process of the containers of one pod, with other settings of the garbage collector.
//
// containerd's main sets GOGC to 40. With the few megabytes of a shim's heap this means many collections while its pod starts: a twelfth of
// the CPU time of a pod's start and end. Memory is released nevertheless: the shim runs a collection every 30 seconds.
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

// growth is the GOGC percentage: the first collection is at 16 MB, since Go starts at 4 MB with 100.
const growth = 400

func main() {
	// A plugin, because the shim sets 40 % itself just before it loads them.
	registry.Register(&plugin.Registration{
		Type: plugins.InternalPlugin, ID: "collector",
		InitFn: func(*plugin.InitContext) (any, error) { return debug.SetGCPercent(growth), nil },
	})
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
}
