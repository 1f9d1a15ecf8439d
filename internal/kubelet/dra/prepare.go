package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"skiff/internal/client"
)

// neededClaim is a claim of a pod that is about to start, and the drivers of its devices.
type neededClaim struct {
	claim   *resourceapi.ResourceClaim
	drivers map[string]*driver
}

// batch is a call to one driver.
type batch struct {
	driver *driver
	claims []*drapb.Claim
}

// Prepare prepares the devices of all claims of a pod. It may be called again; claims that are prepared are skipped.
func (c *Claims) Prepare(ctx context.Context, pod *corev1.Pod) error {
	if len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	began := time.Now()
	err := c.prepare(ctx, pod)
	c.metrics.operation("PrepareResources", began, err)
	if err != nil {
		return fmt.Errorf("prepare dynamic resources: %w", err)
	}
	return nil
}

// prepare checks everything before it records anything: a pod that fails a check must be removable without a driver, which may never have
// been on this node.
func (c *Claims) prepare(ctx context.Context, pod *corev1.Pod) error {
	needed, err := c.readClaims(ctx, pod)
	if err != nil {
		return err
	}
	batches, err := c.use(pod.UID, needed)
	if err != nil {
		return err
	}
	var keys []types.NamespacedName
	for _, b := range batches {
		response, err := b.driver.prepare(ctx, &drapb.NodePrepareResourcesRequest{Claims: b.claims})
		if err != nil {
			return fmt.Errorf("NodePrepareResources: %w", err)
		}
		for uid, result := range response.Claims {
			claim := requestOf(b.claims, uid)
			if claim == nil {
				return fmt.Errorf("NodePrepareResources returned result for unknown claim UID %s", uid)
			}
			if result.GetError() != "" {
				return fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", claim.Name, result.Error)
			}
			c.setDevices(keyOf(claim), b.driver.name, result.GetDevices())
			keys = append(keys, keyOf(claim))
		}
		if n := len(b.claims) - len(response.Claims); n != 0 {
			return fmt.Errorf("NodePrepareResources skipped %d ResourceClaims", n)
		}
	}
	return c.setPrepared(keys)
}

// readClaims reads the claims of a pod from the server and checks that the pod may use them and that their drivers are there.
func (c *Claims) readClaims(ctx context.Context, pod *corev1.Pod) ([]neededClaim, error) {
	podClaims := pod.Spec.ResourceClaims
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		podClaims = append(slices.Clone(podClaims), corev1.PodResourceClaim{ResourceClaimName: &s.ResourceClaimName})
	}
	var needed []neededClaim
	for i := range podClaims {
		name, mustCheckOwner, err := claimOf(pod, &podClaims[i])
		if err != nil {
			return nil, err
		}
		if name == "" {
			continue
		}
		claim, err := client.For[*resourceapi.ResourceClaim](c.Client).Get(ctx, pod.Namespace, name)
		if err != nil {
			return nil, fmt.Errorf("fetch ResourceClaim %s: %w", name, err)
		}
		if mustCheckOwner {
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return nil, err
			}
		}
		if !resourceclaim.IsReservedForPod(pod, claim, false) {
			return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, name, claim.UID)
		}
		if err := checkAllocation(claim); err != nil {
			return nil, fmt.Errorf("ResourceClaim %s: %w", name, err)
		}
		n := neededClaim{claim: claim, drivers: map[string]*driver{}}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if n.drivers[result.Driver], err = c.drivers.get(result.Driver); err != nil {
				return nil, err
			}
		}
		needed = append(needed, n)
	}
	return needed, nil
}

// checkAllocation returns an error if the kubelet cannot prepare a claim.
func checkAllocation(claim *resourceapi.ResourceClaim) error {
	if claim.Status.Allocation == nil {
		return errors.New("not allocated")
	}
	for _, operation := range []resourceapi.SkipNodeOperation{resourceapi.SkipNodeOperationNodePrepareResources, resourceapi.SkipNodeOperationNodeUnprepareResources} {
		needsCall := map[string]bool{}
		for _, result := range claim.Status.Allocation.Devices.Results {
			skips := slices.Contains(result.SkipNodeOperations, resourceapi.SkipNodeOperationAll) || slices.Contains(result.SkipNodeOperations, operation)
			needsCall[result.Driver] = needsCall[result.Driver] || !skips
		}
		for _, needed := range needsCall {
			if !needed {
				return errors.New("DRAOptionalNodeOperations feature gate is disabled on kubelet")
			}
		}
	}
	return nil
}

// use records that a pod uses claims, in the checkpoint too, and returns the calls that are needed to prepare them, sorted by driver.
func (c *Claims) use(pod types.UID, needed []neededClaim) ([]batch, error) {
	byDriver := map[string]*batch{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range needed {
		key := types.NamespacedName{Namespace: n.claim.Namespace, Name: n.claim.Name}
		have := c.claims[key]
		switch {
		case have == nil:
			have = &preparedClaim{claimState: claimState{ClaimUID: n.claim.UID, ClaimName: n.claim.Name, Namespace: n.claim.Namespace,
				PodUIDs: map[types.UID]struct{}{}, DriverState: map[string]driverState{}}}
			for name := range n.drivers {
				have.DriverState[name] = driverState{}
			}
			c.claims[key] = have
		case have.ClaimUID != n.claim.UID:
			return nil, fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists (previous pod force-deleted?!)", n.claim.Name, have.ClaimUID)
		case have.isUnpreparing:
			return nil, fmt.Errorf("ResourceClaim %s is being unprepared", n.claim.Name)
		}
		have.PodUIDs[pod] = struct{}{}
		if have.isPrepared {
			continue
		}
		for name, d := range n.drivers {
			if byDriver[name] == nil {
				byDriver[name] = &batch{driver: d}
			}
			byDriver[name].claims = append(byDriver[name].claims, have.request())
		}
	}
	var batches []batch
	for _, name := range slices.Sorted(maps.Keys(byDriver)) {
		batches = append(batches, *byDriver[name])
	}
	if len(needed) == 0 {
		return nil, nil
	}
	return batches, c.save()
}

// request is the claim in calls to drivers.
func (s *claimState) request() *drapb.Claim {
	return &drapb.Claim{Namespace: s.Namespace, Uid: string(s.ClaimUID), Name: s.ClaimName}
}

func keyOf(claim *drapb.Claim) types.NamespacedName {
	return types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
}

func requestOf(claims []*drapb.Claim, uid string) *drapb.Claim {
	for _, claim := range claims {
		if claim.Uid == uid {
			return claim
		}
	}
	return nil
}

// setDevices replaces the devices that a driver has prepared for a claim.
func (c *Claims) setDevices(key types.NamespacedName, driver string, devices []*drapb.Device) {
	var state driverState
	for _, d := range devices {
		state.Devices = append(state.Devices, deviceState{
			PoolName: d.PoolName, DeviceName: d.DeviceName, ShareID: (*types.UID)(d.ShareId), RequestNames: d.RequestNames, CDIDeviceIDs: d.CdiDeviceIds,
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if claim := c.claims[key]; claim != nil {
		claim.DriverState[driver] = state
	}
}

// setPrepared marks claims as prepared and stores their devices.
func (c *Claims) setPrepared(keys []types.NamespacedName) error {
	if len(keys) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		claim := c.claims[key]
		if claim == nil {
			return fmt.Errorf("internal error: unable to get claim info for ResourceClaim %s in namespace %s", key.Name, key.Namespace)
		}
		claim.isPrepared = true
	}
	return c.save()
}

// CDIDevices returns the names of the CDI devices that a container uses.
func (c *Claims) CDIDevices(pod *corev1.Pod, container *corev1.Container) ([]string, error) {
	used, err := usedBy(pod, container)
	if err != nil {
		return nil, err
	}
	var names []string
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range used {
		devices, found := c.devicesOf(u.claim)
		if !found {
			return nil, fmt.Errorf("internal error: unable to get claim info for ResourceClaim %s in namespace %s", u.claim.Name, u.claim.Namespace)
		}
		for _, request := range u.requests {
			for _, d := range devices {
				for _, id := range d.CDIDeviceIDs {
					if d.isFor(request) && !slices.Contains(names, id) {
						names = append(names, id)
					}
				}
			}
		}
	}
	return names, nil
}

// Allocated returns the prepared claims that a container uses.
func (c *Claims) Allocated(pod *corev1.Pod, container *corev1.Container) []Claim {
	used, err := usedBy(pod, container)
	if err != nil {
		return nil
	}
	var claims []Claim
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range used {
		if devices, found := c.devicesOf(u.claim); found {
			claims = append(claims, Claim{Key: u.claim, Devices: devices})
		}
	}
	return claims
}

// Unprepare unprepares the claims of a pod whose containers have stopped. A claim that another pod uses stays prepared.
func (c *Claims) Unprepare(ctx context.Context, pod *corev1.Pod) error {
	var keys []types.NamespacedName
	c.mu.Lock()
	for key, claim := range c.claims {
		if _, uses := claim.PodUIDs[pod.UID]; uses {
			keys = append(keys, key)
		}
	}
	c.mu.Unlock()
	if len(keys) == 0 {
		return nil
	}
	began := time.Now()
	err := c.unprepareClaims(ctx, pod.UID, keys)
	c.metrics.operation("UnprepareResources", began, err)
	if err != nil {
		return fmt.Errorf("unprepare dynamic resources: %w", err)
	}
	return nil
}

// unprepareClaims ends the use of claims by a pod. It can be repeated after an error.
func (c *Claims) unprepareClaims(ctx context.Context, pod types.UID, keys []types.NamespacedName) error {
	byDriver, unused := c.startUnprepare(pod, keys)
	for _, name := range slices.Sorted(maps.Keys(byDriver)) {
		d, err := c.drivers.get(name)
		if err != nil {
			return err
		}
		response, err := d.unprepare(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: byDriver[name]})
		if err != nil {
			return fmt.Errorf("NodeUnprepareResources: %w", err)
		}
		for uid, result := range response.Claims {
			claim := requestOf(byDriver[name], uid)
			if claim == nil {
				return fmt.Errorf("NodeUnprepareResources returned result for unknown claim UID %s", uid)
			}
			if result.GetError() != "" {
				return fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", claim.Name, result.Error)
			}
		}
		if n := len(byDriver[name]) - len(response.Claims); n != 0 {
			return fmt.Errorf("NodeUnprepareResources skipped %d ResourceClaims", n)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range unused {
		delete(c.claims, key)
	}
	return c.save()
}

// startUnprepare removes a pod from the claims that others use, and marks the rest as being unprepared. It returns the calls to the drivers
// of the rest.
func (c *Claims) startUnprepare(pod types.UID, keys []types.NamespacedName) (byDriver map[string][]*drapb.Claim, unused []types.NamespacedName) {
	byDriver = map[string][]*drapb.Claim{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		claim := c.claims[key]
		if claim == nil {
			continue
		}
		if _, uses := claim.PodUIDs[pod]; !uses {
			continue
		}
		if len(claim.PodUIDs) > 1 {
			delete(claim.PodUIDs, pod)
			continue
		}
		claim.isUnpreparing = true
		unused = append(unused, key)
		for name := range claim.DriverState {
			byDriver[name] = append(byDriver[name], claim.request())
		}
	}
	return byDriver, unused
}
