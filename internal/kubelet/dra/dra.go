// Package dra prepares the devices of ResourceClaims for the pods of this node.
//
// The scheduler has allocated a claim and reserved it for a pod. Before the pod's sandbox is created, Prepare calls the DRA driver of each
// allocated device (prepare.go); the driver answers with the names of CDI devices, which the container runtime adds to the containers that
// use the claim. When the last pod of a claim on this node has stopped, Unprepare calls the drivers again. What is prepared is in a
// checkpoint (checkpoint.go), written before a driver is called, so that nothing prepared is forgotten when the kubelet restarts.
//
// Drivers register through the kubelet's plugin registry (drivers.go). The ResourceSlices of a driver that is gone are deleted, so that the
// scheduler allocates no more of its devices. Drivers may report the health of devices (health.go), which is part of the status of pods.
package dra

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"skiff/internal/client"
	"skiff/internal/kubelet/pluginregistry"
)

const (
	// reconcilePeriod is the period of unpreparing the claims of pods that are gone.
	reconcilePeriod = time.Minute
	// sliceRemovalDelay is the time that a driver has to come back before its ResourceSlices are deleted. It is enough for a restart.
	sliceRemovalDelay = 30 * time.Second
)

// Options are the dependencies of Claims.
type Options struct {
	// Dir has the checkpoints.
	Dir      string
	NodeName string
	Client   *client.Client
	// ActivePods returns the pods that may use claims. all is false while the list is incomplete, and no pod counts as removed.
	ActivePods func() (pods []*corev1.Pod, all bool)
	// PodChanged is called when the health of a pod's device changes.
	PodChanged func(uid types.UID)
	// SliceRemovalDelay is the time after which the ResourceSlices of a disconnected driver are deleted; zero means upstream's 30 seconds.
	SliceRemovalDelay time.Duration
	Log               *slog.Logger
}

// Claims are the ResourceClaims that are prepared on this node.
type Claims struct {
	Options
	drivers *drivers
	health  *deviceHealth
	metrics *draMetrics

	mu     sync.Mutex
	claims map[types.NamespacedName]*preparedClaim
}

// preparedClaim is a claim that a driver may have prepared.
type preparedClaim struct {
	claimState
	// isPrepared is set when all drivers have answered since the kubelet started. A claim from the checkpoint is prepared again for the
	// next pod: drivers accept that.
	isPrepared bool
	// isUnpreparing is set while the drivers unprepare the claim for its last pod. No other pod may use it then.
	isUnpreparing bool
}

// New returns the claims of the checkpoint. It starts nothing.
func New(o Options) (*Claims, error) {
	if o.SliceRemovalDelay == 0 {
		o.SliceRemovalDelay = sliceRemovalDelay
	}
	c := &Claims{Options: o, health: newDeviceHealth(o.Dir, o.Log), claims: map[types.NamespacedName]*preparedClaim{}}
	if err := c.load(); err != nil {
		return nil, err
	}
	c.metrics = newDRAMetrics(c)
	c.drivers = newDrivers(o, c.metrics, c.watchHealth)
	return c, nil
}

// Drivers returns the handler of DRA drivers for the registry of plugins.
func (c *Claims) Drivers() pluginregistry.Handler { return c.drivers }

// Run deletes the ResourceSlices of drivers that are gone and unprepares the claims of pods that are gone, until ctx is done.
func (c *Claims) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.drivers.run(ctx) })
	ticker := time.NewTicker(reconcilePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			c.unprepareRemovedPods(ctx)
		}
	}
}

// unprepareRemovedPods unprepares the claims of pods that are gone, such as those that were deleted while the kubelet did not run.
func (c *Claims) unprepareRemovedPods(ctx context.Context) {
	pods, all := c.ActivePods()
	if !all {
		return
	}
	active := map[types.UID]bool{}
	for _, pod := range pods {
		active[pod.UID] = true
	}
	removed := map[types.UID][]types.NamespacedName{}
	c.mu.Lock()
	for key, claim := range c.claims {
		for uid := range claim.PodUIDs {
			if !active[uid] {
				removed[uid] = append(removed[uid], key)
			}
		}
	}
	c.mu.Unlock()
	for uid, keys := range removed {
		if err := c.unprepareClaims(ctx, uid, keys); err != nil && ctx.Err() == nil {
			c.Log.Warn("failed to unprepare resources of a removed pod", "uid", uid, "error", err)
		}
	}
}

// claimOf returns the name of the claim of one in a pod's spec. It is empty if the pod needs none.
func claimOf(pod *corev1.Pod, podClaim *corev1.PodResourceClaim) (name string, mustCheckOwner bool, err error) {
	claimName, mustCheckOwner, err := resourceclaim.Name(pod, podClaim)
	if err != nil || claimName == nil {
		return "", false, err
	}
	return *claimName, mustCheckOwner, nil
}

// usedRequests are the requests of one claim whose devices a container uses. An empty name means all.
type usedRequests struct {
	claim    types.NamespacedName
	requests []string
}

// usedBy returns what a container uses of the claims of its pod, in the order of the pod's spec, with the claim of its extended resources
// last.
func usedBy(pod *corev1.Pod, c *corev1.Container) ([]usedRequests, error) {
	var used []usedRequests
	for i := range pod.Spec.ResourceClaims {
		var requests []string
		for _, claim := range c.Resources.Claims {
			if claim.Name == pod.Spec.ResourceClaims[i].Name {
				requests = append(requests, claim.Request)
			}
		}
		if len(requests) == 0 {
			continue
		}
		name, _, err := claimOf(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name != "" {
			used = append(used, usedRequests{types.NamespacedName{Namespace: pod.Namespace, Name: name}, requests})
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		var requests []string
		for _, m := range s.RequestMappings {
			if amount := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]; m.ContainerName == c.Name && !amount.IsZero() {
				requests = append(requests, m.RequestName)
			}
		}
		if len(requests) > 0 {
			used = append(used, usedRequests{types.NamespacedName{Namespace: pod.Namespace, Name: s.ResourceClaimName}, requests})
		}
	}
	return used, nil
}

// Device is a prepared device.
type Device struct {
	Driver, Pool, Name string
	ShareID            *types.UID
	CDIDeviceIDs       []string
	requests           []string
}

// Claim is a prepared claim and its devices, those of one driver after the other.
type Claim struct {
	Key     types.NamespacedName
	Devices []Device
}

// isFor reports whether a device belongs to a request. A device without requests belongs to all, and so does an empty request.
func (d Device) isFor(request string) bool {
	return request == "" || len(d.requests) == 0 || slices.Contains(d.requests, request)
}

// devicesOf returns the devices of a claim. The caller holds mu.
func (c *Claims) devicesOf(key types.NamespacedName) (devices []Device, found bool) {
	claim := c.claims[key]
	if claim == nil {
		return nil, false
	}
	for driver, state := range claim.DriverState {
		for _, d := range state.Devices {
			devices = append(devices, Device{Driver: driver, Pool: d.PoolName, Name: d.DeviceName, ShareID: d.ShareID, CDIDeviceIDs: d.CDIDeviceIDs, requests: d.RequestNames})
		}
	}
	slices.SortStableFunc(devices, func(a, b Device) int { return strings.Compare(a.Driver, b.Driver) })
	return devices, true
}
