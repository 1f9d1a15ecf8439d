package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"skiff/test/namespaces"
	"skiff/test/registry"
)

const (
	// fleetPort is the port of the API of all servers of a fleet.
	fleetPort = "6443"
	// heartbeats lets an agent renew its lease every second, so that a fleet can have a short --node-monitor-grace-period.
	heartbeats = "nodeLeaseDurationSeconds: 4\n"
	// diskSize is the size of a server's disk. Without its files it takes no space.
	diskSize = 1 << 30
)

// Fleet is a cluster of servers without nodes and of agents, each on a host of its own. It has to be made inside the namespaces of package
// namespaces.
type Fleet struct {
	Dir     string
	Servers []*FleetServer
	Agents  []*FleetAgent

	flags  []string
	images *registry.Registry
}

// FleetServer is a server of a fleet. Its data is on a disk of its own, which only its host has mounted.
type FleetServer struct {
	*Cluster
	Host *namespaces.Host

	disk      string // the file of the disk
	mount     string // where the host has mounted it
	isMounted bool
}

// FleetAgent is an agent of a fleet.
type FleetAgent struct {
	Host    *namespaces.Host
	Process *Process
	// Dir is the data directory.
	Dir string
}

// NewFleet starts servers and agents below dir, with the given flags of all servers, and waits until all nodes are ready.
func NewFleet(dir string, servers, agents int, flags ...string) (*Fleet, error) {
	f := &Fleet{Dir: dir, flags: flags}
	if err := f.start(servers, agents); err != nil {
		f.Stop()
		return nil, err
	}
	return f, nil
}

func (f *Fleet) start(servers, agents int) (err error) {
	if f.images, err = serveImages(); err != nil {
		return err
	}
	for i := range servers {
		s := &FleetServer{Host: &namespaces.Host{Name: fmt.Sprint("server-", i), Address: fmt.Sprint("10.88.0.", 11+i)}}
		s.disk, s.mount = filepath.Join(f.Dir, s.Host.Name+".ext4"), filepath.Join(f.Dir, s.Host.Name)
		s.Cluster = &Cluster{
			Name: s.Host.Name, Dir: f.Dir, URL: "https://" + net.JoinHostPort(s.Host.Address, fleetPort), Kubeconfig: filepath.Join(f.Dir, s.Host.Name+".kubeconfig"),
		}
		f.Servers = append(f.Servers, s)
		if err := errors.Join(MakeDisk(s.disk, diskSize), os.Mkdir(s.mount, 0o700)); err != nil {
			return err
		}
		joining := []string{"--cluster-init"}
		if i > 0 {
			token, err := f.Servers[0].NodeToken("--server")
			if err != nil {
				return err
			}
			joining = []string{"--join=" + f.Servers[0].URL, "--join-token=" + token}
		}
		if err := f.StartServer(i, joining...); err != nil {
			return err
		}
		if err := errors.Join(s.copyKubeconfig(), s.WaitReady()); err != nil {
			return err
		}
	}
	return f.startAgents(agents)
}

func (f *Fleet) startAgents(agents int) error {
	token, err := f.Servers[0].NodeToken()
	if err != nil {
		return err
	}
	for j := range agents {
		host := &namespaces.Host{Name: fmt.Sprint("agent-", j), Address: fmt.Sprint("10.88.0.", 21+j)}
		f.Agents = append(f.Agents, &FleetAgent{Host: host, Dir: filepath.Join(f.Dir, host.Name)})
		if err := f.startAgent(j, token); err != nil {
			return err
		}
	}
	f.Servers[0].nodes = agents
	return f.Servers[0].waitNodes()
}

// StartServer starts a server, which keeps the state that its disk has. It does not wait until the server is ready.
func (f *Fleet) StartServer(i int, flags ...string) error {
	s := f.Servers[i]
	root, err := Root()
	if err != nil {
		return err
	}
	if err := s.mountDisk(); err != nil {
		return err
	}
	args := append([]string{"server", "--no-node", "--disable=dns", "--data-dir=" + s.dataDir(), "--bind-address=" + s.Host.Address, "--secure-port=" + fleetPort}, f.flags...)
	p, err := startBy(s.Host.Start, f.Dir, s.Host.Name, filepath.Join(root, "bin/skiff"), append(args, flags...)...)
	if err != nil {
		return err
	}
	s.Server = []*Process{p}
	return nil
}

// StartAgent starts an agent that has joined before.
func (f *Fleet) StartAgent(j int) error { return f.startAgent(j, "") }

func (f *Fleet) startAgent(j int, token string) (err error) {
	a := f.Agents[j]
	if err := nodeDir(a.Dir, f.images); err != nil {
		return err
	}
	a.Process, err = startAgent(a.Host, agentOptions{logDir: f.Dir, dir: a.Dir, server: f.Servers[0].URL, token: token, kubelet: heartbeats})
	return err
}

// AddImage makes an image of a static program known to the registry of the fleet, as repository:tag.
func (f *Fleet) AddImage(name, program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	base := filepath.Base(program)
	return f.images.AddImage(name, map[string]string{base: string(data)}, "/"+base)
}

// Stop kills all processes and removes the hosts.
func (f *Fleet) Stop() {
	for _, a := range f.Agents {
		if a.Process != nil {
			a.Process.Kill()
		}
		a.Host.Remove()
		_ = unix.Unmount(a.Dir, unix.MNT_DETACH)
	}
	for _, s := range f.Servers {
		for _, p := range s.Server {
			p.Kill()
		}
		s.Host.Remove()
		_ = os.Remove(s.disk)
	}
	if f.images != nil {
		f.images.Stop()
	}
}

func (s *FleetServer) dataDir() string { return filepath.Join(s.mount, "data") }

// Path is a file on the disk of the server, as other processes than those of its host see it while the server runs.
func (s *FleetServer) Path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", s.Server[0].PID()), s.mount, name)
}

// copyKubeconfig waits until the server has written the kubeconfig of the administrator, and copies it.
func (s *FleetServer) copyKubeconfig() error {
	for end := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		data, err := os.ReadFile(s.Path("data/admin.kubeconfig"))
		if err == nil {
			err = os.WriteFile(s.Kubeconfig, data, 0o600)
		}
		if err == nil {
			_, err = s.Config() // it may have been read before it was complete
		}
		if err == nil || s.Server[0].Exited() || time.Now().After(end) {
			return err
		}
	}
}

// DiskOptions are the options with which a disk of MakeDisk is mounted: nothing but a sync writes its journal during a test.
const DiskOptions = "loop,commit=600"

// MakeDisk makes an ext4 file system in a file. A copy of the file has what would be on a disk after a power loss at that moment.
func MakeDisk(path string, size int64) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		return err
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", path).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	return nil
}

// CopyDisk copies the file of a disk.
func CopyDisk(path, to string) error {
	if out, err := exec.Command("cp", "--sparse=always", path, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return nil
}

// mountDisk mounts the disk on the host, unless it is mounted.
func (s *FleetServer) mountDisk() error {
	if s.isMounted {
		return nil
	}
	p, err := startBy(s.Host.Start, s.Dir, s.Host.Name, "mount", "-o", DiskOptions, s.disk, s.mount)
	if err != nil {
		return err
	}
	if code := p.Wait(); code != 0 {
		return fmt.Errorf("mount the disk of %s: exit code %d:\n%s", s.Host.Name, code, p.Log(5))
	}
	s.isMounted = true
	return nil
}

// LosePower ends the server together with its host: no connection is closed, and the next start finds on its disk what had been written to it and nothing that
// was still in memory.
func (s *FleetServer) LosePower() error {
	if err := s.Host.SetLink(false); err != nil {
		return err
	}
	s.Server[0].Kill()
	after := s.disk + ".after"
	if err := CopyDisk(s.disk, after); err != nil {
		return err
	}
	s.Host.Remove()
	s.isMounted = false
	// The old host may still write to its file until the kernel has removed it.
	return os.Rename(after, s.disk)
}
