package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/doctor"
	"skiff/internal/network/conflict"
	"skiff/internal/network/overlay"
	"skiff/internal/network/proxy"
	"skiff/internal/pki"
)

// Doctor examines a cluster, or this host and what runs on it. It returns an error if something will break.
func Doctor(ctx context.Context, c config.Doctor, out io.Writer) error {
	report, err := examine(ctx, c)
	if err != nil {
		return err
	}
	write := report.WriteTable
	if c.Output == "json" {
		write = report.WriteJSON
	}
	if err := write(out); err != nil {
		return err
	}
	switch count := report.Count(doctor.Error); count {
	case 0:
		return nil
	case 1:
		return errors.New("something will break: 1 error was found")
	default:
		return fmt.Errorf("something will break: %d errors were found", count)
	}
}

func examine(ctx context.Context, c config.Doctor) (report doctor.Report, err error) {
	if c.Kubeconfig != "" {
		remote, err := dial(c.Kubeconfig)
		if err != nil {
			return report, fmt.Errorf("--kubeconfig: %w", err)
		}
		return doctor.Cluster{Client: remote, ServerName: serverName}.Examine(ctx, c.Timeout), nil
	}
	configured, problem := hostConfig(installedServices(unitDir), c.DataDir)
	dataDir := configured.DataDir
	role, err := roleOf(dataDir)
	if err != nil {
		return report, explainRead(err)
	}
	host, err := examinedHost(configured, role)
	if err != nil {
		return report, err
	}
	host.ConfigurationProblem = problem
	report = doctor.Run(ctx, host.Checks(), c.Timeout)
	switch role {
	case commandServer:
		remote, err := dial(filepath.Join(dataDir, adminKubeconfig))
		if err != nil {
			return report, err
		}
		cluster := doctor.Cluster{Client: remote, ServerName: serverName, Keys: pki.Dir(filepath.Join(dataDir, "pki"))}
		report.Add(cluster.Examine(ctx, c.Timeout))
	case commandAgent:
		node, err := examinedNode(dataDir)
		if err != nil {
			return report, err
		}
		report.Add(doctor.Run(ctx, node.Checks(), c.Timeout))
	}
	return report, nil
}

// roleOf is what has run with a data directory: a server, an agent that has joined, or "".
func roleOf(dataDir string) (string, error) {
	for _, known := range []struct{ role, file string }{{commandServer, adminKubeconfig}, {commandAgent, "kubelet/kubeconfig"}} {
		_, err := os.Stat(filepath.Join(dataDir, known.file))
		if err == nil {
			return known.role, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", nil
}

// hostConfig is the configuration of the first service that has the data directory, or that of any if it is empty; otherwise that of a server without flags. The
// error says what is wrong with the flags of the services.
func hostConfig(services []unit, dataDir string) (config.Server, error) {
	var problem error
	isOther := false // a service has another data directory
	for _, u := range services {
		c, isRead, err := u.hostConfig()
		switch {
		case err == nil && (dataDir == "" || c.DataDir == dataDir):
			return c, nil
		case err == nil:
			isOther = true
		case isRead || problem == nil:
			problem = err // of two, the one whose flags the file has
		}
	}
	withoutFlags := config.DefaultServer()
	withoutFlags.DataDir = cmp.Or(dataDir, withoutFlags.DataDir)
	if isOther {
		return withoutFlags, nil
	}
	return withoutFlags, problem
}

// installedServices are the services that may run on this host: the one that is installed, or those that would have the configuration file as their only flags.
func installedServices(unitDir string) []unit {
	if text, err := os.ReadFile(filepath.Join(unitDir, unitName)); err == nil {
		if u, err := parseUnit(string(text)); err == nil {
			return []unit{u}
		}
	}
	return []unit{{command: commandServer}, {command: commandAgent}}
}

// hostConfig is the configuration of the service, with that of an agent's node in a server's. isRead is whether its flags could be read, valid or not.
func (u unit) hostConfig() (c config.Server, isRead bool, err error) {
	c = config.DefaultServer()
	var settings config.Settings
	validate := c.Validate
	switch u.command {
	case commandServer:
		settings, err = u.parse(&c)
	case commandAgent:
		agent := config.DefaultAgent()
		settings, err = u.parse(&agent)
		c.DataDir, c.Node, validate = agent.DataDir, agent.Node, agent.Validate
	default:
		err = fmt.Errorf("%s: unknown command %q", unitName, u.command)
	}
	if err != nil {
		return c, false, err
	}
	return c, true, settings.Explain(validate())
}

// examinedHost is this host with the settings of a configuration.
func examinedHost(c config.Server, role string) (h doctor.Host, err error) {
	dataDir := c.DataDir
	settings, err := c.Node.KubeletConfiguration()
	if err != nil {
		return h, err
	}
	h = doctor.Host{DataDir: dataDir, KubeletDir: c.Node.KubeletDir(dataDir), Thresholds: settings.EvictionHard, IsRunning: checkUnlocked(dataDir, "data-dir") != nil, StaticPods: settings.StaticPodPath}
	used, err := usedKubeletDir(h.KubeletDir, dataDir)
	if err != nil {
		return h, err
	}
	h.IsForeignKubelet = used == ""
	if h.NodeName, err = c.Node.NodeName(); err != nil {
		return h, err
	}
	services, err := c.ServiceCIDRs()
	if err != nil {
		return h, err
	}
	for _, p := range services {
		h.CIDRs = append(h.CIDRs, conflict.Range{CIDR: p, Flag: doctor.FlagServiceCIDR})
	}
	pods, err := podRanges(c.PodCIDRs)
	if err != nil {
		return h, err
	}
	for _, p := range pods {
		h.CIDRs = append(h.CIDRs, conflict.Range{CIDR: p.Prefix, Flag: doctor.FlagClusterCIDR})
	}
	if role != commandAgent {
		h.Ports = serverPorts(&c)
		h.NoNode = c.NoNode
	}
	if h.NoNode {
		h.Thresholds = nil
		return h, nil
	}
	h.Ports = append(h.Ports, nodePorts(settings.Port, *settings.HealthzPort, services)...)
	return h, nil
}

// serverPorts are the ports of a control plane.
func serverPorts(c *config.Server) []doctor.Port {
	return []doctor.Port{
		{Protocol: "tcp", Number: uint16(c.SecurePort), Breaks: "the API is not served: a server does not start", Flag: "--secure-port"},
		{Protocol: "tcp", Number: uint16(c.Servers.PeerPort), Breaks: "the server cannot be one of several", Flag: "--etcd-peer-port", IsOptional: true},
	}
}

// nodePorts are the ports of a node.
func nodePorts(kubelet, healthz int32, services []netip.Prefix) []doctor.Port {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	ports := []doctor.Port{
		{Protocol: "tcp", Number: uint16(kubelet), Breaks: "the node does not start; logs and exec need it", Flag: "port of a KubeletConfiguration"},
		{Protocol: "tcp", Number: uint16(healthz), Address: loopback, Breaks: "the node does not start", Flag: "healthzPort of a KubeletConfiguration"},
		{Protocol: "udp", Number: overlay.VXLANPort, Breaks: "pods of different nodes do not reach each other with --network-backend=vxlan", Flag: "--network-backend", IsOptional: true},
	}
	if address, err := netip.ParseAddrPort(proxy.DefaultHealthzAddress); err == nil {
		ports = append(ports, doctor.Port{Protocol: "tcp", Number: address.Port(), Breaks: "load balancers do not see whether the node's Service proxy is healthy", IsOptional: true})
	}
	for _, text := range clusterDNS(services) {
		if address, err := netip.ParseAddr(text); err == nil {
			ports = append(ports, doctor.Port{Protocol: "tcp", Number: 53, Address: address, Breaks: "pods of the node resolve no names"})
		}
	}
	return ports
}

// examinedNode is the node that an agent has made of this host.
func examinedNode(dataDir string) (n doctor.Node, err error) {
	dir := filepath.Join(dataDir, "kubelet")
	kubeconfig, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return n, err
	}
	n = doctor.Node{KeyDir: filepath.Join(dir, "pki")}
	if n.Name, err = joinedName(n.KeyDir); err != nil {
		return n, err
	}
	// The kubeconfig has the address of the agent's balancer, which is another one after each start.
	n.Servers, err = (&agentBalancer{file: filepath.Join(dir, "servers.json"), log: slog.New(slog.DiscardHandler)}).load()
	n.Connect = func(address string) (*client.Client, error) {
		connection := rest.CopyConfig(kubeconfig)
		connection.Host, connection.TLSClientConfig.ServerName = "https://"+address, serverName
		return newClient(connection)
	}
	return n, err
}

// joinedName is the name with which a node has joined.
func joinedName(keyDir string) (string, error) {
	path := filepath.Join(keyDir, "kubelet-client-current.pem")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	certs, err := pki.ParseCertificates(data)
	if err != nil {
		return "", fmt.Errorf("parse %s: %w", path, err)
	}
	return strings.TrimPrefix(certs[0].Subject.CommonName, "system:node:"), nil
}
