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
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"skiff/internal/resourcename"
)

// maxSocketPath is the maximum length of a socket's path.
const maxSocketPath = 107

// connectTimeout bounds how long connecting to a plugin may take.
const connectTimeout = 10 * time.Second

// plugin is a connected plugin.
type plugin struct {
	socket     string
	connection *grpc.ClientConn
	client     pluginapi.DevicePluginClient
	options    *pluginapi.DevicePluginOptions
}

// Run serves registrations until ctx is done. Plugins of an earlier run register again when they notice that their sockets
// are gone.
func (d *Devices) Run(ctx context.Context) error {
	if err := os.MkdirAll(d.Dir, 0o750); err != nil {
		return fmt.Errorf("create device plugin directory: %w", err)
	}
	if err := removeSockets(d.Dir); err != nil {
		return fmt.Errorf("remove device plugin sockets: %w", err)
	}
	socket := filepath.Join(d.Dir, socketName)
	if len(socket) > maxSocketPath {
		d.Log.Warn("device plugins are disabled: socket path is too long", "path", socket)
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

// registration is the registration service.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	devices  *Devices
	ctx      context.Context // of the whole run, not of one request
	watching *sync.WaitGroup
}

// Register connects to a plugin, whose socket is in the same directory, and watches its devices.
func (r *registration) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	name := request.ResourceName
	if !slices.Contains(pluginapi.SupportedVersions[:], request.Version) {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", request.Version, pluginapi.SupportedVersions)
	}
	if !resourcename.IsExtended(corev1.ResourceName(name)) {
		return nil, fmt.Errorf("the ResourceName %q is invalid", name)
	}
	p, err := connect(ctx, filepath.Join(r.devices.Dir, filepath.Base(request.Endpoint)))
	if err != nil {
		return nil, err
	}
	r.devices.add(name, p)
	r.watching.Go(func() {
		err := r.devices.watch(r.ctx, name, p)
		r.devices.remove(name, p)
		if r.ctx.Err() == nil {
			r.devices.Log.Warn("device plugin disconnected", "resource", name, "error", err)
		}
	})
	r.devices.Log.Info("registered device plugin", "resource", name, "socket", request.Endpoint)
	return &pluginapi.Empty{}, nil
}

// connect connects to a plugin and reads its options.
func connect(ctx context.Context, socket string) (*plugin, error) {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	p := &plugin{socket: socket, connection: connection, client: pluginapi.NewDevicePluginClient(connection)}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if p.options, err = p.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true)); err != nil {
		_ = connection.Close() // the connection is unusable
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return p, nil
}

// add makes a plugin the current one of its resource. It replaces one with the same socket.
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
			_ = old.connection.Close() // ends its watch
		}
		return old.socket == p.socket
	}), p)
}

// watch updates the devices a plugin reports until it disconnects.
func (d *Devices) watch(ctx context.Context, name string, p *plugin) error {
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

// remove removes a disconnected plugin. With the last one the resource counts as stopped.
func (d *Devices) remove(name string, p *plugin) {
	_ = p.connection.Close() // already disconnected
	d.mu.Lock()
	r := d.resources[name]
	if r == nil || !slices.Contains(r.plugins, p) {
		d.mu.Unlock()
		return // it was replaced
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
