//go:build tools

// Package csi pins the sidecars of CSI drivers that the suite deploys with the driver csi-hostpath. They depend on
// older libraries of Kubernetes than skiff and are therefore a module of their own.
package csi

import (
	_ "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"
	_ "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"
	_ "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"
	_ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"
)
