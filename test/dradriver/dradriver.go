// Package dradriver is a DRA driver for tests, built as drivers are: on the helper of k8s.io/dynamic-resource-allocation. Its devices are
// environment variables, which reach containers through the Container Device Interface.
package dradriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// cdiDir is where container runtimes look for CDI specifications.
const cdiDir = "/var/run/cdi"

// Driver is a driver on one node. Fields are set before Start.
type Driver struct {
	Name, NodeName string
	// Root is the kubelet's directory.
	Root string
	// Config is for the API server.
	Config *rest.Config
	// Devices are the names of its devices.
	Devices []string

	helper *kubeletplugin.Helper

	mu       sync.Mutex
	prepared []string // names of claims
	err      error
	health   chan kubeletplugin.DeviceHealthReport
}

// Start registers the driver and publishes its devices.
func (d *Driver) Start(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(d.Config)
	if err != nil {
		return err
	}
	d.health = make(chan kubeletplugin.DeviceHealthReport)
	data := filepath.Join(d.Root, "plugins", d.Name)
	if err := errors.Join(os.MkdirAll(data, 0o750), os.MkdirAll(cdiDir, 0o755)); err != nil {
		return err
	}
	d.helper, err = kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(d.Name), kubeletplugin.NodeName(d.NodeName), kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(d.Root, "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return err
	}
	var devices []resourceapi.Device
	for _, name := range d.Devices {
		devices = append(devices, resourceapi.Device{Name: name})
	}
	return d.helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.NodeName: {Slices: []resourceslice.Slice{{Devices: devices}}}}})
}

// Stop unregisters the driver.
func (d *Driver) Stop() {
	if d.helper != nil {
		d.helper.Stop()
		d.helper = nil
	}
}

// Prepared returns the names of the prepared claims.
func (d *Driver) Prepared() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(slices.Values(d.prepared))
}

// Err returns the first error in the background, such as that of publishing devices.
func (d *Driver) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func (d *Driver) specFile(uid types.UID) string {
	return filepath.Join(cdiDir, d.Name+"-"+string(uid)+".json")
}

// PrepareResourceClaims writes a CDI specification for each claim.
func (d *Driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = d.prepare(claim)
	}
	return results, nil
}

func (d *Driver) prepare(claim *resourceapi.ResourceClaim) (result kubeletplugin.PrepareResult) {
	type device struct {
		Name           string              `json:"name"`
		ContainerEdits map[string][]string `json:"containerEdits"`
	}
	spec := struct {
		Version string   `json:"cdiVersion"`
		Kind    string   `json:"kind"`
		Devices []device `json:"devices"`
	}{Version: "0.5.0", Kind: d.Name + "/device"}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != d.Name {
			continue
		}
		name := string(claim.UID) + "-" + r.Device
		spec.Devices = append(spec.Devices, device{Name: name, ContainerEdits: map[string][]string{"env": {"DEVICE_" + r.Request + "=" + r.Device}}})
		result.Devices = append(result.Devices, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{spec.Kind + "=" + name}})
	}
	text, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(d.specFile(claim.UID), text, 0o644)
	}
	if err != nil {
		return kubeletplugin.PrepareResult{Err: fmt.Errorf("write CDI specification: %w", err)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(d.prepared, claim.Name) {
		d.prepared = append(d.prepared, claim.Name)
	}
	return result
}

// UnprepareResourceClaims removes the CDI specifications.
func (d *Driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, claim := range claims {
		if err := os.Remove(d.specFile(claim.UID)); err != nil && !errors.Is(err, os.ErrNotExist) {
			results[claim.UID] = err
			continue
		}
		results[claim.UID] = nil
		d.prepared = slices.DeleteFunc(d.prepared, func(name string) bool { return name == claim.Name })
	}
	return results, nil
}

// HandleError records the first error.
func (d *Driver) HandleError(_ context.Context, err error, message string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = fmt.Errorf("%s: %w", message, err)
	}
}

// Report sends a report about the health of devices to the kubelet.
func (d *Driver) Report(ctx context.Context, report kubeletplugin.DeviceHealthReport) error {
	select {
	case d.health <- report:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WatchHealthStatus passes the reports on.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case report := <-d.health:
			select {
			case <-ctx.Done():
				return nil
			case reports <- report:
			}
		}
	}
}
