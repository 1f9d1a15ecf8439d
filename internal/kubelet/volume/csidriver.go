package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"skiff/internal/client"
)

// How often the registry's directory is looked at, and how long a driver may take to answer about itself.
const (
	registryLook = 2 * time.Second
	driverAnswer = 10 * time.Second
)

// drivers are the CSI drivers on this node. A driver's registrar puts a socket into a directory of the kubelet; over it the driver
// says its name and where it is reached.
type drivers struct {
	root, nodeName string
	client         *client.Client
	node           func() *corev1.Node
	log            *slog.Logger

	// sockets are those seen, with the name of the driver behind each. Only run touches them.
	sockets map[string]socket

	mu     sync.Mutex
	byName map[string]*driver
	// busy has a lock for each volume that is being set up or taken down: drivers are promised one call at a time for each.
	busy map[string]*sync.Mutex
}

type socket struct {
	info   fs.FileInfo
	driver string
}

// driver is one that is reached.
type driver struct {
	connection *grpc.ClientConn
	node       csi.NodeClient
	stages     bool // wants volumes staged on the node before they are published to pods
	ownsGroups bool // gives volumes to groups itself
}

func newDrivers(o Options) *drivers {
	return &drivers{
		root: o.Root, nodeName: o.NodeName, client: o.Client, node: o.Node, log: o.Log,
		byName: map[string]*driver{}, sockets: map[string]socket{}, busy: map[string]*sync.Mutex{},
	}
}

// registered returns a driver that is reached.
func (d *drivers) registered(name string) (*driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if found := d.byName[name]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// lock waits for a volume and returns what lets go of it.
func (d *drivers) lock(data volumeData) func() {
	key := data.Driver + "^" + data.Handle
	d.mu.Lock()
	if d.busy[key] == nil {
		d.busy[key] = &sync.Mutex{}
	}
	volume := d.busy[key]
	d.mu.Unlock()
	volume.Lock()
	return volume.Unlock
}

// run looks for sockets until ctx ends.
func (d *drivers) run(ctx context.Context) error {
	dir := filepath.Join(d.root, "plugins_registry")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	for {
		d.look(ctx, dir)
		select {
		case <-ctx.Done():
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, known := range d.byName {
				err := known.connection.Close()
				if err != nil {
					d.log.Debug("connection to a CSI driver did not close", "error", err)
				}
			}
			return nil
		case <-time.After(registryLook):
		}
	}
}

// look registers drivers whose sockets are new and forgets those whose sockets are gone.
func (d *drivers) look(ctx context.Context, dir string) {
	seen := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSocket == 0 || strings.HasPrefix(entry.Name(), ".") {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		seen[path] = true
		if have, ok := d.sockets[path]; ok && os.SameFile(have.info, info) && have.info.ModTime().Equal(info.ModTime()) {
			return nil
		}
		name, err := d.register(ctx, path)
		if err != nil {
			d.log.Warn("storage driver is not registered", "socket", path, "error", err)
			return nil
		}
		if name != "" {
			d.log.Info("storage driver registered", "driver", name)
		}
		d.sockets[path] = socket{info: info, driver: name}
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		d.log.Warn("directory of plugins is not read", "directory", dir, "error", err)
	}
	for path, gone := range d.sockets {
		if seen[path] {
			continue
		}
		delete(d.sockets, path)
		if gone.driver != "" {
			d.forget(ctx, gone.driver)
		}
	}
}

// register asks behind a socket who is there. It returns "" for plugins that are no storage drivers, which are left to others.
func (d *drivers) register(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, driverAnswer)
	defer cancel()
	connection, err := dial(path)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	registrar := registration.NewRegistrationClient(connection)
	info, err := registrar.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return "", fmt.Errorf("ask who is there: %w", err)
	}
	if info.Type != registration.CSIPlugin {
		return "", nil
	}
	endpoint := info.Endpoint
	if endpoint == "" {
		endpoint = path
	}
	failure := d.add(ctx, info.Name, strings.TrimPrefix(endpoint, "unix://"), info.SupportedVersions)
	status := &registration.RegistrationStatus{PluginRegistered: failure == nil}
	if failure != nil {
		status.Error = fmt.Sprintf("RegisterPlugin error -- plugin registration failed with err: %v", failure)
	}
	if _, err := registrar.NotifyRegistrationStatus(ctx, status); err != nil && failure == nil {
		failure = fmt.Errorf("tell the driver that it is registered: %w", err)
	}
	return info.Name, failure
}

// add reaches a driver and publishes on the node what it says about itself.
func (d *drivers) add(ctx context.Context, name, endpoint string, versions []string) error {
	if !slices.ContainsFunc(versions, func(v string) bool { return strings.HasPrefix(strings.TrimPrefix(v, "v"), "1.") }) {
		return fmt.Errorf("versions %v are not supported, only 1.x is", versions)
	}
	connection, err := dial(endpoint)
	if err != nil {
		return err
	}
	added := &driver{connection: connection, node: csi.NewNodeClient(connection)}
	err = d.ask(ctx, name, added)
	if err != nil {
		return errors.Join(err, connection.Close())
	}
	d.mu.Lock()
	old := d.byName[name]
	d.byName[name] = added
	d.mu.Unlock()
	if old != nil {
		return old.connection.Close()
	}
	return nil
}

func (d *drivers) ask(ctx context.Context, name string, added *driver) error {
	capabilities, err := added.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("read what the driver can do: %w", err)
	}
	for _, capability := range capabilities.Capabilities {
		switch capability.GetRpc().GetType() {
		case csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
			added.stages = true
		case csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:
			added.ownsGroups = true
		}
	}
	info, err := added.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("ask the driver about this node: %w", err)
	}
	if err := d.label(ctx, info.GetAccessibleTopology().GetSegments()); err != nil {
		return err
	}
	return d.tell(ctx, name, info)
}

// label puts on the node where in the storage's topology it is, which the scheduler reads.
func (d *drivers) label(ctx context.Context, segments map[string]string) error {
	if len(segments) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": segments}})
	if err != nil {
		return err
	}
	if _, err := client.For[*corev1.Node](d.client).Patch(ctx, "", d.nodeName, client.RawPatch(client.MergePatch, patch), client.WriteOptions{}); err != nil {
		return fmt.Errorf("label the node with its topology: %w", err)
	}
	return nil
}

func (d *drivers) forget(ctx context.Context, name string) {
	d.mu.Lock()
	gone := d.byName[name]
	delete(d.byName, name)
	d.mu.Unlock()
	if gone == nil {
		return
	}
	if err := errors.Join(gone.connection.Close(), d.tell(ctx, name, nil)); err != nil {
		d.log.Warn("storage driver is not removed from the node", "driver", name, "error", err)
	}
}

// tell writes into the node's CSINode object that a driver is there, or with nil that it is not.
func (d *drivers) tell(ctx context.Context, name string, info *csi.NodeGetInfoResponse) error {
	nodes := client.For[*storagev1.CSINode](d.client)
	for range 5 {
		have, err := nodes.Get(ctx, "", d.nodeName)
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return fmt.Errorf("read CSINode: %w", err)
		}
		object := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: d.nodeName}}
		if !missing {
			object = have.DeepCopy()
		} else if node := d.node(); node != nil {
			object.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
		}
		object.Spec.Drivers = slices.DeleteFunc(object.Spec.Drivers, func(driver storagev1.CSINodeDriver) bool { return driver.Name == name })
		if info != nil {
			object.Spec.Drivers = append(object.Spec.Drivers, describe(name, info))
		}
		if missing {
			_, err = nodes.Create(ctx, object, client.WriteOptions{})
		} else {
			_, err = nodes.Update(ctx, object, client.WriteOptions{})
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return errors.New("CSINode keeps changing")
}

func describe(name string, info *csi.NodeGetInfoResponse) storagev1.CSINodeDriver {
	described := storagev1.CSINodeDriver{Name: name, NodeID: info.NodeId}
	for key := range info.GetAccessibleTopology().GetSegments() {
		described.TopologyKeys = append(described.TopologyKeys, key)
	}
	slices.Sort(described.TopologyKeys)
	if info.MaxVolumesPerNode > 0 {
		most := int32(min(info.MaxVolumesPerNode, 1<<31-1))
		described.Allocatable = &storagev1.VolumeNodeResources{Count: &most}
	}
	return described
}

func dial(path string) (*grpc.ClientConn, error) {
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", path, err)
	}
	return connection, nil
}
