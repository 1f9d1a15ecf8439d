// Command skiff-cni is the CNI plugin that connects pods to the network of a node. The container runtime runs it for every pod, so it is a
// small program: skiff itself runs as the plugin under the same name, but takes several times as long to start.
package main

import (
	"os"

	"skiff/internal/network/cni"
)

func main() { os.Exit(cni.Main()) }
