package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"

	"skiff/internal/network/hostnet"
)

// loopbackName is the plugin that sets up a pod's loopback interface. Some runtimes call it in addition to the network's plugin.
const loopbackName = "loopback"

// configuration is the input of the plugin: the settings and the arguments of one call.
type configuration struct {
	CNIVersion string `json:"cniVersion"`
	Type       string `json:"type"`
	Settings
	Runtime struct {
		Ports     []Port    `json:"portMappings"`
		Bandwidth Bandwidth `json:"bandwidth"`
	} `json:"runtimeConfig"`
	Live []types.GCAttachment `json:"cni.dev/valid-attachments"`
	Prev json.RawMessage      `json:"prevResult"`
}

// Is reports whether a program has one of the plugin's names.
func Is(program string) bool {
	base := filepath.Base(program)
	return base == Name || base == loopbackName
}

// Main runs the plugin: the runtime passes a command in the environment and a configuration on standard input, and reads the result or the
// error from standard output. It returns the exit code.
func Main() int {
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{Add: add, Del: del, Check: checkCommand, GC: collect, Status: status},
		version.All, Name+" joins pods to the network of a skiff node")
	if err == nil {
		return 0
	}
	if printErr := err.Print(); printErr != nil {
		fmt.Fprintln(os.Stderr, "skiff-cni:", printErr)
	}
	return 1
}

func read(args *skel.CmdArgs) (configuration, error) {
	var c configuration
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return c, types.NewError(types.ErrDecodingFailure, "cannot read the network configuration", err.Error())
	}
	c.Settings = c.Settings.WithDefaults()
	if c.Type != loopbackName {
		if err := c.Validate(); err != nil {
			return c, types.NewError(types.ErrInvalidNetworkConfig, "invalid network configuration", err.Error())
		}
	}
	return c, nil
}

// podArgs are the runtime's arguments about the pod.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE types.UnmarshallableString
	K8S_POD_NAME      types.UnmarshallableString
	K8S_POD_UID       types.UnmarshallableString
}

func add(args *skel.CmdArgs) error {
	c, err := read(args)
	if err != nil {
		return err
	}
	if c.Type == loopbackName {
		return addLoopback(c, args)
	}
	pod := podArgs{CommonArgs: types.CommonArgs{IgnoreUnknown: true}}
	if err := types.LoadArgs(args.Args, &pod); err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "cannot read CNI_ARGS", err.Error())
	}
	made, bridge, err := attach(c.Settings, Attachment{
		Container: args.ContainerID, Interface: args.IfName, Ports: c.Runtime.Ports, Bandwidth: c.Runtime.Bandwidth,
		Namespace: string(pod.K8S_POD_NAMESPACE), Pod: string(pod.K8S_POD_NAME), UID: string(pod.K8S_POD_UID),
	}, args.Netns)
	if errors.Is(err, errExhausted) {
		return types.NewError(types.ErrTryAgainLater, "the node has no free pod address", err.Error())
	}
	if errors.Is(err, errNotAnnounced) {
		return types.NewError(types.ErrTryAgainLater, "the pod has to wait for its network policies", err.Error())
	}
	if err != nil {
		return fmt.Errorf("add pod to network: %w", err)
	}
	plan := planPod(c.Settings, args.IfName, made.Addresses)
	return types.PrintResult(plan.result(c.Settings, args, bridge), c.CNIVersion)
}

// result is what the runtime is told about an attached pod.
func (p podPlan) result(s Settings, args *skel.CmdArgs, bridge netlink.Link) *current.Result {
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{
		{Name: s.Bridge, Mac: bridge.Attrs().HardwareAddr.String()},
		{Name: vethName(args.ContainerID, args.IfName)},
		{Name: args.IfName, Mac: p.mac.String(), Sandbox: args.Netns, Mtu: bridge.Attrs().MTU},
	}}
	for i, a := range p.addresses {
		result.IPs = append(result.IPs, &current.IPConfig{Interface: current.Int(2), Address: *hostnet.IPNet(a), Gateway: p.gateways[i].AsSlice()})
		result.Routes = append(result.Routes, &types.Route{Dst: *defaultNet(p.gateways[i]), GW: p.gateways[i].AsSlice()})
	}
	return result
}

// addLoopback sets the loopback interface up; the kernel adds its addresses.
func addLoopback(c configuration, args *skel.CmdArgs) error {
	namespace, err := os.Open(args.Netns)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer namespace.Close()
	if err := inNamespace(namespace, loopbackUp); err != nil {
		return err
	}
	if len(c.Prev) > 0 {
		previous, err := current.NewResult(c.Prev)
		if err != nil {
			return types.NewError(types.ErrDecodingFailure, "cannot read the result of the plugin before", err.Error())
		}
		return types.PrintResult(previous, c.CNIVersion)
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{
		{Name: "lo", Mac: "00:00:00:00:00:00", Sandbox: args.Netns},
	}}
	result.IPs = append(result.IPs, &current.IPConfig{Interface: current.Int(0), Address: *hostnet.IPNet(loopbackHost)})
	return types.PrintResult(result, c.CNIVersion)
}

func del(args *skel.CmdArgs) error {
	c, err := read(args)
	if err != nil || c.Type == loopbackName {
		return err
	}
	if err := detach(c.Settings, args.ContainerID, args.IfName); err != nil {
		return fmt.Errorf("remove pod from network: %w", err)
	}
	return nil
}

func checkCommand(args *skel.CmdArgs) error {
	c, err := read(args)
	if err != nil || c.Type == loopbackName {
		return err
	}
	if err := check(c.Settings, args.ContainerID, args.IfName, args.Netns); err != nil {
		return fmt.Errorf("check pod's network: %w", err)
	}
	return nil
}

func collect(args *skel.CmdArgs) error {
	c, err := read(args)
	if err != nil || c.Type == loopbackName {
		return err
	}
	var live []Identity
	for _, a := range c.Live {
		live = append(live, Identity{Container: a.ContainerID, Interface: a.IfName})
	}
	_, err = Collect(c.Settings, live)
	return err
}

// status reports whether pods can be added.
func status(args *skel.CmdArgs) error {
	c, err := read(args)
	if err == nil && c.Type != loopbackName {
		err = Status(c.Settings)
	}
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "the pod network is not ready", err.Error())
	}
	return nil
}

// Status configures the host if needed, and returns the error if that fails.
func Status(s Settings) error {
	s = s.WithDefaults()
	if _, ok := ready(planHost(s)); ok {
		return nil
	}
	return Setup(s)
}
