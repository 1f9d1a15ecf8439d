// Command skiff-cni joins pods to the network of a node. The container runtime starts it for every pod, so it is a small
// program: skiff itself can play it under the same name, but takes several times as long to start.
package main

import (
	"os"

	"skiff/internal/network/cni"
)

func main() { os.Exit(cni.Main()) }
