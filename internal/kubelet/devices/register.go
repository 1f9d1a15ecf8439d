package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// maxSocketPath is the longest path of a socket the kernel takes.
const maxSocketPath = 107

// connectTimeout bounds how long a plugin may take to be reached and to tell of itself.
const connectTimeout = 10 * time.Second

// plugin is one that is connected.
type plugin struct {
	socket     string
	connection *grpc.ClientConn
	client     pluginapi.DevicePluginClient
	options    *pluginapi.DevicePluginOptions
}

// Run lets plugins register until ctx ends. Those of a run before have to do so again: they see that their sockets are gone.
func (d *Devices) Run(ctx context.Context) error {
	if err := os.MkdirAll(d.Dir, 0o750); err != nil {
		return fmt.Errorf("make the directory of device plugins: %w", err)
	}
	if err := removeSockets(d.Dir); err != nil {
		return fmt.Errorf("remove the sockets of device plugins: %w", err)
	}
	socket := filepath.Join(d.Dir, socketName)
	if len(socket) > maxSocketPath {
		d.Log.Warn("there are no devices: the path of the socket for their plugins is too long", "path", socket)
		return nil
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for device plugins: %w", err)
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, &registration{devices: d, ctx: ctx, watching: &watching})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return server.Serve(listener)
}

func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Type()&os.ModeSocket != 0 {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// registration is the service that plugins announce themselves to.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	devices  *Devices
	ctx      context.Context // of the whole run, not of one request
	watching *sync.WaitGroup
}

// Register connects to a plugin that serves in the same directory, and follows it from then on.
func (r *registration) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	name := request.ResourceName
	if !slices.Contains(pluginapi.SupportedVersions[:], request.Version) {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", request.Version, pluginapi.SupportedVersions)
	}
	if !isExtendedResource(name) {
		return nil, fmt.Errorf("the ResourceName %q is invalid", name)
	}
	p, err := connect(ctx, filepath.Join(r.devices.Dir, filepath.Base(request.Endpoint)))
	if err != nil {
		return nil, err
	}
	r.devices.add(name, p)
	r.watching.Go(func() {
		err := r.devices.follow(r.ctx, name, p)
		r.devices.remove(name, p)
		if r.ctx.Err() == nil {
			r.devices.Log.Warn("a device plugin is gone", "resource", name, "error", err)
		}
	})
	r.devices.Log.Info("a device plugin is registered", "resource", name, "socket", request.Endpoint)
	return &pluginapi.Empty{}, nil
}

// connect reaches a plugin and requested what it can do.
func connect(ctx context.Context, socket string) (*plugin, error) {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	p := &plugin{socket: socket, connection: connection, client: pluginapi.NewDevicePluginClient(connection)}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if p.options, err = p.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true)); err != nil {
		_ = connection.Close() // it was of no use
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return p, nil
}

// add makes a plugin the one that is asked. One at the same socket has been replaced by it.
func (d *Devices) add(name string, p *plugin) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.resources[name]
	if r == nil {
		r = &deviceResource{devices: map[string]*pluginapi.Device{}}
		d.resources[name] = r
	}
	r.stoppedAt = time.Time{}
	r.plugins = append(slices.DeleteFunc(r.plugins, func(old *plugin) bool {
		if old.socket == p.socket {
			_ = old.connection.Close() // whoever follows it sees that
		}
		return old.socket == p.socket
	}), p)
}

// follow takes in what a plugin tells of its devices until it ends.
func (d *Devices) follow(ctx context.Context, name string, p *plugin) error {
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	for {
		update, err := stream.Recv()
		if err != nil {
			return err
		}
		d.updateDevices(name, update.Devices)
	}
}

// remove forgets a plugin that has ended. With the last one, nobody can say how the devices are.
func (d *Devices) remove(name string, p *plugin) {
	_ = p.connection.Close() // it has ended already
	d.mu.Lock()
	r := d.resources[name]
	if r == nil || !slices.Contains(r.plugins, p) {
		d.mu.Unlock()
		return // another has taken its place
	}
	r.plugins = slices.DeleteFunc(r.plugins, func(other *plugin) bool { return other == p })
	last := len(r.plugins) == 0
	if last {
		r.stoppedAt = time.Now()
	}
	d.mu.Unlock()
	if last {
		d.saveOrLog()
		d.Changed()
	}
}
