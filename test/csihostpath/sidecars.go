package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar tells the kubelet about a driver.
type registrar struct {
	registration.UnimplementedRegistrationServer
	driver, endpoint string
	failed           func(error)
}

// runRegistrar serves the registration of a driver until ctx is done.
func runRegistrar(ctx context.Context, flags *flag.FlagSet, args []string) error {
	var driverSocket, endpoint, dir, health string
	flags.StringVar(&driverSocket, "csi-address", "/csi/csi.sock", "socket of the driver")
	flags.StringVar(&endpoint, "kubelet-registration-path", "", "the driver's socket, as the kubelet sees it")
	flags.StringVar(&dir, "plugin-registration-path", "/registration", "directory where the kubelet looks for plugins")
	flags.StringVar(&health, "http-endpoint", "", "address of the health check")
	if err := flags.Parse(args); err != nil {
		return err
	}
	connection, err := dial(driverSocket)
	if err != nil {
		return err
	}
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err := errors.Join(err, connection.Close()); err != nil {
		return fmt.Errorf("read the name of the driver: %w", err)
	}
	socket := filepath.Join(dir, info.Name+"-reg.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier registration: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &registrar{driver: info.Name, endpoint: endpoint, failed: cancel})
	if health != "" {
		http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
			if _, err := os.Stat(socket); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
		go func() { cancel(http.ListenAndServe(health, nil)) }()
	}
	// The socket is removed when the server stops, so the kubelet learns that the driver is gone.
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	slog.Info("serving", "driver", info.Name, "socket", socket)
	if err := server.Serve(listener); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// GetInfo implements the registration service.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.driver, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements the registration service.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	slog.Info("registration", "registered", status.PluginRegistered, "err", status.Error)
	if !status.PluginRegistered {
		r.failed(errors.New("the kubelet refused the driver: " + status.Error))
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// runLivenessProbe answers HTTP probes by asking a driver.
func runLivenessProbe(ctx context.Context, flags *flag.FlagSet, args []string) error {
	var socket, port string
	var timeout time.Duration
	flags.StringVar(&socket, "csi-address", "/csi/csi.sock", "socket of the driver")
	flags.StringVar(&port, "health-port", "9808", "port to serve on")
	flags.DurationVar(&timeout, "probe-timeout", time.Second, "how long the driver may take to answer")
	if err := flags.Parse(args); err != nil {
		return err
	}
	connection, err := dial(socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	identity := csi.NewIdentityClient(connection)
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		response, err := identity.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && response.Ready != nil && !response.Ready.Value {
			err = errors.New("the driver is not ready")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	server := &http.Server{Addr: ":" + port, Handler: mux, ReadHeaderTimeout: timeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
