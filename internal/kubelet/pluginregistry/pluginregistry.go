// Package pluginregistry registers the plugins of the node: CSI drivers and DRA drivers.
//
// A plugin creates a socket in the kubelet's plugins_registry directory and answers there with its type, its name, the endpoint of its
// service and the versions it supports. The handler of the type accepts or rejects it; the plugin is told which. It is removed when its
// socket is.
package pluginregistry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// How often the directory is scanned, and how long a plugin may take to register.
const (
	scanInterval        = 2 * time.Second
	registrationTimeout = 10 * time.Second
)

// The types of plugins.
const (
	CSIDriver = registration.CSIPlugin
	DRADriver = registration.DRAPlugin
)

// Plugin is what a plugin says about itself.
type Plugin struct {
	Name string
	// Endpoint is the path of the socket of its service.
	Endpoint string
	// Versions are the versions, or the names of the gRPC services, that it supports.
	Versions []string
}

// Handler handles the plugins of one type. Its methods are not called concurrently.
type Handler interface {
	// Register adds a plugin. The plugin receives the error, and is registered again with the next scan.
	Register(ctx context.Context, p Plugin) error
	// Remove removes a registered plugin.
	Remove(ctx context.Context, p Plugin)
}

// Registry scans the directory.
type Registry struct {
	Dir string
	// Handlers are those of the plugin types. Plugins of other types are ignored.
	Handlers map[string]Handler
	Log      *slog.Logger

	// sockets are the known sockets. Only Run uses them.
	sockets map[string]socket
}

// socket is a socket whose plugin was asked.
type socket struct {
	info   fs.FileInfo
	plugin Plugin
	// handler is nil if the plugin's type is ignored.
	handler Handler
}

// Run scans for sockets until ctx is done. Plugins are then left registered: the kubelet ends.
func (r *Registry) Run(ctx context.Context) error {
	if err := os.MkdirAll(r.Dir, 0o750); err != nil {
		return fmt.Errorf("create plugin registration directory: %w", err)
	}
	r.sockets = map[string]socket{}
	for {
		r.scan(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(scanInterval):
		}
	}
}

// scan registers plugins with new sockets and removes those whose sockets are removed. A socket that was created again is a new one.
func (r *Registry) scan(ctx context.Context) {
	found := map[string]fs.FileInfo{}
	err := filepath.WalkDir(r.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSocket == 0 || strings.HasPrefix(entry.Name(), ".") {
			return nil
		}
		if info, err := entry.Info(); err == nil {
			found[path] = info
		}
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.Log.Warn("failed to scan plugin registration directory", "directory", r.Dir, "error", err)
		return
	}
	for path, known := range r.sockets {
		if info := found[path]; info != nil && os.SameFile(known.info, info) && known.info.ModTime().Equal(info.ModTime()) {
			delete(found, path)
			continue
		}
		delete(r.sockets, path)
		if known.handler != nil {
			known.handler.Remove(ctx, known.plugin)
			r.Log.Info("removed plugin", "plugin", known.plugin.Name, "endpoint", known.plugin.Endpoint)
		}
	}
	for path, info := range found {
		added, err := r.register(ctx, path)
		if err != nil {
			r.Log.Warn("failed to register plugin", "socket", path, "error", err)
			continue
		}
		if added.handler != nil {
			r.Log.Info("registered plugin", "plugin", added.plugin.Name, "endpoint", added.plugin.Endpoint)
		}
		added.info = info
		r.sockets[path] = added
	}
}

// register registers the plugin behind a socket.
func (r *Registry) register(ctx context.Context, path string) (socket, error) {
	ctx, cancel := context.WithTimeout(ctx, registrationTimeout)
	defer cancel()
	connection, err := Dial(path)
	if err != nil {
		return socket{}, err
	}
	defer connection.Close()
	registrar := registration.NewRegistrationClient(connection)
	info, err := registrar.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return socket{}, fmt.Errorf("get plugin info: %w", err)
	}
	handler := r.Handlers[info.Type]
	if handler == nil {
		return socket{}, nil
	}
	plugin := Plugin{Name: info.Name, Endpoint: strings.TrimPrefix(info.Endpoint, "unix://"), Versions: info.SupportedVersions}
	if plugin.Endpoint == "" {
		plugin.Endpoint = path
	}
	failure := handler.Register(ctx, plugin)
	status := &registration.RegistrationStatus{PluginRegistered: failure == nil}
	if failure != nil {
		status.Error = fmt.Sprintf("RegisterPlugin error -- plugin registration failed with err: %v", failure)
	}
	if _, err := registrar.NotifyRegistrationStatus(ctx, status); err != nil && failure == nil {
		handler.Remove(ctx, plugin)
		failure = fmt.Errorf("notify plugin of its registration: %w", err)
	}
	return socket{plugin: plugin, handler: handler}, failure
}

// Dial returns a connection to a plugin's socket.
func Dial(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	connection, err := grpc.NewClient("unix://"+path, options...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", path, err)
	}
	return connection, nil
}
