package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthpbv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"skiff/internal/client"
	"skiff/internal/kubelet/pluginregistry"
)

const (
	// callTimeout bounds a call to a driver.
	callTimeout = 45 * time.Second
	// firstRemovalRetry and maxRemovalRetry bound the delay of retries of a deletion of ResourceSlices.
	firstRemovalRetry = time.Second
	maxRemovalRetry   = 5 * time.Minute
	// healthRetry is the delay before a stream of health reports is opened again.
	healthRetry = 5 * time.Second
)

// supportedServices and supportedHealthServices are the gRPC services of drivers that the kubelet uses.
var (
	supportedServices       = []string{drapb.DRAPluginService, drapbv1beta1.DRAPluginService}
	supportedHealthServices = []string{healthpb.DRAResourceHealthService, healthpbv1alpha1.DRAResourceHealthService}
)

// driver is one instance of a registered driver. A driver that is being updated may have two.
type driver struct {
	name, endpoint         string
	service, healthService string
	connection             *grpc.ClientConn
	stopHealth             context.CancelFunc

	// isConnected is guarded by drivers.mu.
	isConnected bool
}

// drivers are the registered DRA drivers. They implement pluginregistry.Handler.
type drivers struct {
	nodeName     string
	client       *client.Client
	removalDelay time.Duration
	metrics      *draMetrics
	log          *slog.Logger
	// watchHealth handles the health reports of a driver until the stream ends.
	watchHealth func(driver string, stream healthpb.DRAResourceHealth_NodeWatchResourcesClient) error
	// ctx is that of the health streams. It is done when run returns.
	ctx      context.Context
	cancel   context.CancelFunc
	watching sync.WaitGroup
	// removalsChanged wakes run.
	removalsChanged chan struct{}

	mu     sync.Mutex
	byName map[string][]*driver // in the order of their registration
	// removals are the deletions of ResourceSlices that are due at some time, by driver. The empty name means all drivers.
	removals map[string]*removal
}

// removal is a deletion of the ResourceSlices of a driver.
type removal struct {
	at    time.Time
	retry time.Duration
}

func newDrivers(o Options, metrics *draMetrics, watchHealth func(string, healthpb.DRAResourceHealth_NodeWatchResourcesClient) error) *drivers {
	d := &drivers{
		nodeName: o.NodeName, client: o.Client, removalDelay: o.SliceRemovalDelay, metrics: metrics, log: o.Log, watchHealth: watchHealth,
		removalsChanged: make(chan struct{}, 1), byName: map[string][]*driver{},
		// No driver is usable before it has registered again. Its devices must not be allocated until then.
		removals: map[string]*removal{"": {}},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// get returns a driver: the newest instance that is connected, or else the newest.
func (d *drivers) get(name string) (*driver, error) {
	if name == "" {
		return nil, errors.New("DRA driver name is empty")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	instances := d.byName[name]
	if len(instances) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	for _, instance := range slices.Backward(instances) {
		if instance.isConnected {
			return instance, nil
		}
	}
	return instances[len(instances)-1], nil
}

// Register connects to a driver.
func (d *drivers) Register(_ context.Context, p pluginregistry.Plugin) error {
	service, err := chooseService(p.Versions)
	if err != nil {
		return fmt.Errorf("invalid supported gRPC versions of DRA driver plugin %s at endpoint %s: %w", p.Name, p.Endpoint, err)
	}
	added := &driver{name: p.Name, endpoint: p.Endpoint, service: service, healthService: firstOf(supportedHealthServices, p.Versions)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.ContainsFunc(d.byName[p.Name], func(other *driver) bool { return other.endpoint == p.Endpoint }) {
		return fmt.Errorf("endpoint %s already registered for DRA driver plugin %s", p.Endpoint, p.Name)
	}
	added.connection, err = pluginregistry.Dial(p.Endpoint, grpc.WithChainUnaryInterceptor(d.metrics.intercept(p.Name)), grpc.WithStatsHandler(connectionMonitor{d, added}))
	if err != nil {
		return fmt.Errorf("create gRPC connection to DRA driver %s plugin at endpoint %s: %w", p.Name, p.Endpoint, err)
	}
	if added.healthService != "" {
		ctx, cancel := context.WithCancel(d.ctx)
		added.stopHealth = cancel
		d.watching.Go(func() { d.followHealth(ctx, added) })
	}
	added.connection.Connect() // so that a driver that nobody calls is known to be there
	d.byName[p.Name] = append(d.byName[p.Name], added)
	d.updateRemoval(p.Name)
	return nil
}

// chooseService returns the first service of a driver that the kubelet supports.
func chooseService(offered []string) (string, error) {
	if len(offered) == 0 {
		return "", errors.New("empty list of supported gRPC services (aka supported versions)")
	}
	if service := firstOf(offered, supportedServices); service != "" {
		return service, nil
	}
	return "", fmt.Errorf("none of services supported by the plugin (%q) are supported by the kubelet (%q)", offered, supportedServices)
}

// firstOf returns the first name that is also among others, or "".
func firstOf(names, others []string) string {
	for _, name := range names {
		if slices.Contains(others, name) {
			return name
		}
	}
	return ""
}

// Remove disconnects from a driver.
func (d *drivers) Remove(_ context.Context, p pluginregistry.Plugin) {
	if removed := d.forget(p); removed != nil {
		// The monitor of the connection needs mu.
		if err := removed.close(); err != nil {
			d.log.Debug("failed to close connection to DRA driver", "driver", p.Name, "error", err)
		}
	}
}

func (d *drivers) forget(p pluginregistry.Plugin) *driver {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.byName[p.Name], func(other *driver) bool { return other.endpoint == p.Endpoint })
	if i < 0 {
		return nil
	}
	removed := d.byName[p.Name][i]
	if d.byName[p.Name] = slices.Delete(d.byName[p.Name], i, i+1); len(d.byName[p.Name]) == 0 {
		delete(d.byName, p.Name)
	}
	d.updateRemoval(p.Name)
	return removed
}

func (p *driver) close() error {
	if p.stopHealth != nil {
		p.stopHealth()
	}
	return p.connection.Close()
}

// connectionMonitor records whether a driver is connected.
type connectionMonitor struct {
	drivers *drivers
	driver  *driver
}

// TagRPC implements stats.Handler.
func (m connectionMonitor) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return ctx
}

// HandleRPC implements stats.Handler.
func (m connectionMonitor) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn implements stats.Handler.
func (m connectionMonitor) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

// HandleConn implements stats.Handler.
func (m connectionMonitor) HandleConn(_ context.Context, s stats.ConnStats) {
	var isConnected bool
	switch s.(type) {
	case *stats.ConnBegin:
		isConnected = true
	case *stats.ConnEnd:
		// Without a call gRPC would not connect again. It holds a lock here that Connect needs.
		go m.driver.connection.Connect()
	default:
		return
	}
	m.drivers.mu.Lock()
	defer m.drivers.mu.Unlock()
	m.driver.isConnected = isConnected
	m.drivers.updateRemoval(m.driver.name)
}

// updateRemoval schedules the deletion of a driver's ResourceSlices if no instance of it is connected, and cancels it otherwise. A scheduled
// deletion keeps its time. The caller holds mu.
func (d *drivers) updateRemoval(name string) {
	if slices.ContainsFunc(d.byName[name], func(instance *driver) bool { return instance.isConnected }) {
		delete(d.removals, name)
		return
	}
	if d.removals[name] == nil {
		d.removals[name] = &removal{at: time.Now().Add(d.removalDelay)}
		select {
		case d.removalsChanged <- struct{}{}:
		default:
		}
	}
}

// run deletes ResourceSlices when they are due, until ctx is done, and then disconnects from all drivers.
func (d *drivers) run(ctx context.Context) {
	for {
		name, wait, found := d.nextRemoval()
		var timer <-chan time.Time
		if found {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			d.stop()
			return
		case <-d.removalsChanged:
		case <-timer:
			d.removalDone(name, d.deleteSlices(ctx, name))
		}
	}
}

// stop disconnects from all drivers and waits for their health streams.
func (d *drivers) stop() {
	d.cancel()
	d.mu.Lock()
	var all []*driver
	for _, instances := range d.byName {
		all = append(all, instances...)
	}
	d.mu.Unlock()
	for _, instance := range all {
		if err := instance.close(); err != nil {
			d.log.Debug("failed to close connection to DRA driver", "driver", instance.name, "error", err)
		}
	}
	d.watching.Wait()
}

// nextRemoval returns the driver whose ResourceSlices are to be deleted first, and when.
func (d *drivers) nextRemoval() (name string, wait time.Duration, found bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var first *removal
	for driver, r := range d.removals {
		if first == nil || r.at.Before(first.at) {
			name, first = driver, r
		}
	}
	if first == nil {
		return "", 0, false
	}
	return name, max(0, time.Until(first.at)), true
}

// removalDone forgets a deletion that succeeded, and schedules a retry of one that did not.
func (d *drivers) removalDone(name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.removals[name]
	if r == nil {
		return
	}
	if err == nil {
		delete(d.removals, name)
		return
	}
	if r.retry = min(2*r.retry, maxRemovalRetry); r.retry == 0 {
		r.retry = firstRemovalRetry
	}
	r.at = time.Now().Add(r.retry + rand.N(r.retry/5))
	d.log.Warn("failed to delete ResourceSlices of a DRA driver", "driver", name, "error", err)
}

// deleteSlices deletes the ResourceSlices of a driver on this node, or of all.
func (d *drivers) deleteSlices(ctx context.Context, name string) error {
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: d.nodeName}
	if name != "" {
		selector[resourceapi.ResourceSliceSelectorDriver] = name
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return client.For[*resourceapi.ResourceSlice](d.client).DeleteCollection(ctx, "", client.Selector{Fields: selector.AsSelector()}, metav1.DeleteOptions{})
}

// prepare calls NodePrepareResources.
func (p *driver) prepare(ctx context.Context, request *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if p.service == drapbv1beta1.DRAPluginService {
		return drapbv1beta1.V1Beta1ClientWrapper{DRAPluginClient: drapbv1beta1.NewDRAPluginClient(p.connection)}.NodePrepareResources(ctx, request)
	}
	return drapb.NewDRAPluginClient(p.connection).NodePrepareResources(ctx, request)
}

// unprepare calls NodeUnprepareResources.
func (p *driver) unprepare(ctx context.Context, request *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if p.service == drapbv1beta1.DRAPluginService {
		return drapbv1beta1.V1Beta1ClientWrapper{DRAPluginClient: drapbv1beta1.NewDRAPluginClient(p.connection)}.NodeUnprepareResources(ctx, request)
	}
	return drapb.NewDRAPluginClient(p.connection).NodeUnprepareResources(ctx, request)
}

// openHealth opens a stream of health reports.
func (p *driver) openHealth(ctx context.Context) (healthpb.DRAResourceHealth_NodeWatchResourcesClient, error) {
	if p.healthService == healthpbv1alpha1.DRAResourceHealthService {
		wrapper := healthpb.V1Alpha1ClientWrapper{Client: healthpbv1alpha1.NewDRAResourceHealthClient(p.connection)}
		return wrapper.NodeWatchResources(ctx, &healthpb.NodeWatchResourcesRequest{})
	}
	return healthpb.NewDRAResourceHealthClient(p.connection).NodeWatchResources(ctx, &healthpb.NodeWatchResourcesRequest{})
}

// followHealth reads the health reports of a driver until ctx is done. It ends earlier if the driver announces the service but does not
// implement it.
func (d *drivers) followHealth(ctx context.Context, p *driver) {
	for ctx.Err() == nil {
		stream, err := p.openHealth(ctx)
		if err == nil {
			err = d.watchHealth(p.name, stream)
		}
		if status.Code(err) == codes.Unimplemented {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(healthRetry):
		}
	}
}
