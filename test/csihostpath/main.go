// Command csihostpath is the CSI driver that Kubernetes' tests of the driver csi-hostpath deploy, with the two of its sidecars that are small:
// the one that registers the driver with the kubelet, and the one that answers the driver's liveness probe. The flags are those that the
// tests' manifests have.
//
//	csihostpath driver --drivername=NAME --endpoint=unix:///csi/csi.sock --nodeid=NODE
//	csihostpath registrar --csi-address=/csi/csi.sock --kubelet-registration-path=PATH
//	csihostpath livenessprobe --csi-address=/csi/csi.sock --health-port=9898
//
// Volumes are directories, or files behind loop devices, on the node that the driver runs on. What exists is known in memory only: a driver
// that restarts has no volumes.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		slog.Error("failed to run", "err", err)
		os.Exit(1)
	}
}

// run runs the command that the first argument names.
func run(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, *flag.FlagSet, []string) error{
		"driver": runDriver, "registrar": runRegistrar, "livenessprobe": runLivenessProbe,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("usage: csihostpath driver|registrar|livenessprobe FLAG...")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.Int("v", 0, "verbosity; every call is logged, whatever it is")
	return commands[args[0]](ctx, flags, args[1:])
}

// runDriver serves the driver.
func runDriver(ctx context.Context, flags *flag.FlagSet, args []string) error {
	d := newDriver("", "", "")
	var endpoint, mutable string
	flags.StringVar(&endpoint, "endpoint", "unix:///csi/csi.sock", "socket to serve on")
	flags.StringVar(&d.name, "drivername", "hostpath.csi.k8s.io", "name of the driver")
	flags.StringVar(&d.node, "nodeid", "", "name of the node")
	flags.StringVar(&d.dir, "statedir", "/csi-data-dir", "directory of the volumes")
	flags.Int64Var(&d.maxVolumes, "maxvolumespernode", 0, "number of volumes that a node may have; 0: any")
	flags.BoolVar(&d.checkLifecycle, "check-volume-lifecycle", false, "refuse to delete or unstage volumes that are used")
	flags.BoolVar(&d.modify, "enable-controller-modify-volume", false, "support VolumeAttributesClasses")
	flags.StringVar(&mutable, "accepted-mutable-parameter-names", "", "parameters of VolumeAttributesClasses, separated by commas; empty: all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if mutable != "" {
		d.mutable = strings.Split(mutable, ",")
	}
	return d.serve(ctx, strings.TrimPrefix(endpoint, "unix://"))
}

// dial connects to a CSI driver. Calls wait until it serves.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
}
