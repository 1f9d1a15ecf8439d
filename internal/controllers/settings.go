package controllers

import (
	"net/netip"
	"time"

	"k8s.io/utils/ptr"

	"skiff/internal/controllers/cleanup"
	"skiff/internal/controllers/identity"
	"skiff/internal/controllers/node"
	"skiff/internal/controllers/scaling"
	"skiff/internal/controllers/volume"
)

// Settings are the settings of controllers. With the zero value, controllers that need keys are disabled.
type Settings struct {
	// NamespaceGrace is the delay before the content of a deleted namespace is deleted. Nil: cleanup.NamespaceDeletionDelay. A
	// single API server needs none.
	NamespaceGrace *time.Duration
	// TerminatedPods is the number of terminated pods that are kept. Nil: cleanup.DefaultTerminatedPods. Zero: all.
	TerminatedPods *int
	// LegacyTokenLifetime is the time after which an unused token secret becomes invalid. Nil: cleanup.DefaultLegacyTokenUnusedPeriod.
	LegacyTokenLifetime *time.Duration
	// RootCA are the PEM certificates that verify the API server. They are published in every namespace.
	RootCA []byte
	// TokenSigner signs the tokens in secrets.
	TokenSigner identity.TokenSigner
	// Signing are the CAs that sign approved certificate requests.
	Signing identity.SigningCAs
	// ServerNames are names and addresses of the API server. Certificates of nodes for them require manual approval.
	ServerNames []string
	// BindNodeNames lets the name of a node belong to the host that joined with it first. Upstream has no such rule.
	BindNodeNames bool
	// EndpointsPerSlice is the maximum number of endpoints per slice. Nil: network.DefaultEndpointsPerSlice.
	EndpointsPerSlice *int
	// MirroredPerSubset is the maximum number of addresses mirrored per Endpoints subset. Nil: network.DefaultMirroredPerSubset.
	MirroredPerSubset *int
	// ReservedPorts are ports of the nodes that the load balancer does not assign. Nil: network.DefaultReservedPorts.
	ReservedPorts *[]int32
	// NodeLifecycle configures when nodes are unhealthy. Nil: node.DefaultLifecycle.
	NodeLifecycle *node.LifecycleSettings
	// PodRanges are divided into the nodes' pod CIDRs. None: pod CIDRs are not allocated.
	PodRanges []node.PodRange
	// ServiceRanges are never allocated to nodes.
	ServiceRanges []netip.Prefix
	// LocalPath configures volumes on nodes. Nil: in volume.DefaultLocalPathDir on nodes that announce no directory.
	LocalPath *volume.LocalPathSettings
	// UnmountWait is the time an unreachable node may keep a volume attached. Nil: volume.DefaultMaxUnmountWait. Zero: forever.
	UnmountWait *time.Duration
	// Autoscaler configures the horizontal pod autoscaler. Nil: scaling.DefaultAutoscaler.
	Autoscaler *scaling.AutoscalerSettings
}

func (s Settings) namespaceGrace() time.Duration {
	return ptr.Deref(s.NamespaceGrace, cleanup.NamespaceDeletionDelay)
}

func (s Settings) terminatedPods() int {
	return ptr.Deref(s.TerminatedPods, cleanup.DefaultTerminatedPods)
}
