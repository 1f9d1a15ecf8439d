package controllers

import (
	"net/netip"
	"time"

	"skiff/internal/controllers/cleanup"
	"skiff/internal/controllers/identity"
	"skiff/internal/controllers/node"
	"skiff/internal/controllers/scaling"
	"skiff/internal/controllers/volume"
)

// Settings are what controllers must be told. The zero value is good for all but those that need keys: they are off.
type Settings struct {
	// NamespaceGrace is how long a deleted namespace is left alone at first, so that all API servers hear of it. Nil:
	// cleanup.NamespaceGrace. A server that is alone with its store needs none.
	NamespaceGrace *time.Duration
	// TerminatedPods is how many pods that have ended are kept. Nil: cleanup.TerminatedPods. Zero: all.
	TerminatedPods *int
	// LegacyTokenLife is how long a token in a secret may go unused. Nil: cleanup.LegacyTokenLife.
	LegacyTokenLife *time.Duration
	// RootCA are the certificates, as PEM, by which clients know the API server. They are published in every namespace.
	RootCA []byte
	// TokenSigner signs the tokens that are kept in secrets.
	TokenSigner identity.TokenSigner
	// Signing are the authorities that sign approved certificate requests.
	Signing identity.SigningCAs
	// ServerNames are names and addresses of the API server, which no node gets a certificate for without a person's approval.
	ServerNames []string
	// EndpointsPerSlice is how many endpoints a slice holds. Nil: network.DefaultEndpointsPerSlice.
	EndpointsPerSlice *int
	// MirroredPerSubset is how many addresses of an Endpoints subset are mirrored. Nil: network.DefaultMirroredPerSubset.
	MirroredPerSubset *int
	// ReservedPorts are the nodes' own, which no service gets from the load balancer. Nil: network.DefaultReservedPorts.
	ReservedPorts *[]int32
	// NodeLifecycle says when nodes count as lost. Nil: node.DefaultLifecycle.
	NodeLifecycle *node.LifecycleSettings
	// PodRanges are cut into the nodes' pod CIDRs. None: nodes get none from here.
	PodRanges []node.PodRange
	// ServiceRanges are never given to nodes.
	ServiceRanges []netip.Prefix
	// LocalPath says where volumes are made on nodes. Nil: in volume.DefaultLocalPathDirectory, and their directories stay.
	LocalPath *volume.LocalPathSettings
	// UnmountWait is how long a lost node may keep a volume. Nil: volume.DefaultUnmountWait. Zero: for ever.
	UnmountWait *time.Duration
	// Autoscaler says how workloads are scaled. Nil: scaling.DefaultAutoscaler.
	Autoscaler *scaling.AutoscalerSettings
}

// or returns what was set, or else the default.
func or[T any](set *T, otherwise T) T {
	if set != nil {
		return *set
	}
	return otherwise
}

func (s Settings) namespaceGrace() time.Duration {
	return or(s.NamespaceGrace, cleanup.NamespaceDeletionDelay)
}

func (s Settings) terminatedPods() int { return or(s.TerminatedPods, cleanup.DefaultTerminatedPods) }
