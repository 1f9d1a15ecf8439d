package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/kubelet/pluginregistry"
)

// drivers are the registered CSI drivers. They implement pluginregistry.Handler.
type drivers struct {
	nodeName string
	client   *client.Client
	node     func() *corev1.Node
	log      *slog.Logger
	index    *publishedIndex

	mu     sync.Mutex
	byName map[string]*driver
	// locks has the locks of the volumes that calls are made for.
	locks map[string]*volumeLock
}

// volumeLock is the lock of a volume: the CSI spec asks for one call at a time per volume.
type volumeLock struct {
	// held has an element while the lock is held.
	held chan struct{}
	// users is how many hold the lock or wait for it. It is guarded by drivers.mu.
	users int
}

// driver is a connected driver.
type driver struct {
	connection      *grpc.ClientConn
	node            csi.NodeClient
	supportsStaging bool // has the STAGE_UNSTAGE_VOLUME capability
	appliesFSGroup  bool // has the VOLUME_MOUNT_GROUP capability
	expands         bool // has the EXPAND_VOLUME capability
	measures        bool // has the GET_VOLUME_STATS capability
	// distinguishesWriters is set if the driver has the SINGLE_NODE_MULTI_WRITER capability.
	distinguishesWriters bool
}

// callTimeout is a gRPC service configuration that bounds each call of a driver by two minutes, as upstream does. The pod's worker retries after it.
const callTimeout = `{"methodConfig":[{"name":[{}],"timeout":"120s"}]}`

func newDrivers(o Options) *drivers {
	return &drivers{
		nodeName: o.NodeName, client: o.Client, node: o.Node, log: o.Log, index: &publishedIndex{root: o.Root},
		byName: map[string]*driver{}, locks: map[string]*volumeLock{},
	}
}

// registered returns a registered driver.
func (d *drivers) registered(name string) (*driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if driver := d.byName[name]; driver != nil {
		return driver, nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// lock locks a volume, unless ctx is done before.
func (d *drivers) lock(ctx context.Context, data volumeData) (unlock func(), err error) {
	key := data.Driver + "^" + data.Handle
	d.mu.Lock()
	l := d.locks[key]
	if l == nil {
		l = &volumeLock{held: make(chan struct{}, 1)}
		d.locks[key] = l
	}
	l.users++
	d.mu.Unlock()
	leave := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(d.locks, key)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// run closes the connections to the drivers when ctx is done.
func (d *drivers) run(ctx context.Context) error {
	<-ctx.Done()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, driver := range d.byName {
		if err := driver.connection.Close(); err != nil {
			d.log.Debug("failed to close connection to CSI driver", "error", err)
		}
	}
	return nil
}

// Register connects to a driver and writes its information to the Node and CSINode objects.
func (d *drivers) Register(ctx context.Context, p pluginregistry.Plugin) error {
	if !slices.ContainsFunc(p.Versions, func(v string) bool { return strings.HasPrefix(strings.TrimPrefix(v, "v"), "1.") }) {
		return fmt.Errorf("versions %v are not supported, only 1.x is", p.Versions)
	}
	connection, err := pluginregistry.Dial(p.Endpoint, grpc.WithDefaultServiceConfig(callTimeout))
	if err != nil {
		return err
	}
	added := &driver{connection: connection, node: csi.NewNodeClient(connection)}
	err = d.queryDriver(ctx, p.Name, added)
	if err != nil {
		return errors.Join(err, connection.Close())
	}
	d.mu.Lock()
	old := d.byName[p.Name]
	d.byName[p.Name] = added
	d.mu.Unlock()
	if old != nil {
		return old.connection.Close()
	}
	return nil
}

func (d *drivers) queryDriver(ctx context.Context, name string, added *driver) error {
	capabilities, err := added.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("get node capabilities: %w", err)
	}
	for _, capability := range capabilities.Capabilities {
		switch capability.GetRpc().GetType() {
		case csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
			added.supportsStaging = true
		case csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:
			added.appliesFSGroup = true
		case csi.NodeServiceCapability_RPC_EXPAND_VOLUME:
			added.expands = true
		case csi.NodeServiceCapability_RPC_GET_VOLUME_STATS:
			added.measures = true
		case csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			added.distinguishesWriters = true
		}
	}
	info, err := added.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("get node info: %w", err)
	}
	if err := d.label(ctx, info.GetAccessibleTopology().GetSegments()); err != nil {
		return err
	}
	return d.updateCSINode(ctx, name, info)
}

// label sets the driver's topology labels on the node, which the scheduler uses.
func (d *drivers) label(ctx context.Context, segments map[string]string) error {
	if len(segments) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": segments}})
	if err != nil {
		return err
	}
	if _, err := client.For[*corev1.Node](d.client).Patch(ctx, "", d.nodeName, client.RawPatch(client.MergePatch, patch), client.WriteOptions{}); err != nil {
		return fmt.Errorf("set topology labels of the node: %w", err)
	}
	return nil
}

// Remove disconnects from a driver and removes it from the CSINode object.
func (d *drivers) Remove(ctx context.Context, p pluginregistry.Plugin) {
	d.mu.Lock()
	removed := d.byName[p.Name]
	delete(d.byName, p.Name)
	d.mu.Unlock()
	if removed == nil {
		return
	}
	if err := errors.Join(removed.connection.Close(), d.updateCSINode(ctx, p.Name, nil)); err != nil {
		d.log.Warn("failed to remove CSI driver from CSINode", "driver", p.Name, "error", err)
	}
}

// updateCSINode adds a driver to the node's CSINode object, or removes it if info is nil.
func (d *drivers) updateCSINode(ctx context.Context, name string, info *csi.NodeGetInfoResponse) error {
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
			object.Spec.Drivers = append(object.Spec.Drivers, csiNodeDriver(name, info))
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
	return errors.New("update CSINode: too many conflicts")
}

func csiNodeDriver(name string, info *csi.NodeGetInfoResponse) storagev1.CSINodeDriver {
	described := storagev1.CSINodeDriver{Name: name, NodeID: info.NodeId}
	for key := range info.GetAccessibleTopology().GetSegments() {
		described.TopologyKeys = append(described.TopologyKeys, key)
	}
	slices.Sort(described.TopologyKeys)
	if info.MaxVolumesPerNode > 0 {
		count := int32(min(info.MaxVolumesPerNode, 1<<31-1))
		described.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	}
	return described
}
