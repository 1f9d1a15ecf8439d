package system

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/config"
	"skiff/internal/listeners"
)

// neededCapabilities are those without which no node runs: its mounts and its network are the kernel's.
var neededCapabilities = []struct {
	bit  uint
	name string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
}

// checkNode checks what a node needs of this process and of its host, before anything is started. alternative is what can be done without it; it may
// be empty.
func checkNode(c *config.Node, dataDir, alternative string) error {
	// The second skiff on a directory is told so, not that its port is in use.
	if err := checkUnlocked(dataDir, "data-dir"); err != nil {
		return err
	}
	effective, err := effectiveCapabilities()
	if err != nil {
		return fmt.Errorf("read the capabilities of this process: %w", err)
	}
	if err := checkCapabilities(effective, os.Geteuid(), alternative); err != nil {
		return err
	}
	settings, err := c.KubeletConfiguration()
	if err != nil {
		return err
	}
	if !*settings.EnableServer {
		return nil
	}
	port := int(settings.Port)
	if port == 0 {
		port = kubeletPort
	}
	return checkPort(net.JoinHostPort(settings.Address, strconv.Itoa(port)), otherKubeletPort)
}

// checkPort checks that nobody listens at an address that is needed later. remedy is what to do instead of stopping the other program.
func checkPort(address, remedy string) error {
	holder, held, err := listeners.Find("tcp", address)
	if err != nil || !held {
		return nil // listening will tell
	}
	return fmt.Errorf("port %d is in use by %s: stop it, or %s", holder.Address.Port(), holder, remedy)
}

// otherKubeletPort is what to do when the port of the kubelet is in use.
const otherKubeletPort = "set another port in the file of --kubelet-config"

func effectiveCapabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), err
}

// checkCapabilities checks the capabilities of a process of a user.
func checkCapabilities(effective uint64, uid int, alternative string) error {
	var missing []string
	for _, c := range neededCapabilities {
		if effective&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	switch {
	case len(missing) == 0:
		return nil
	case uid != 0:
		return fmt.Errorf("only root can run a node: run skiff as root%s", alternative)
	}
	return fmt.Errorf("a node needs %s, which this process does not have: run its container as a privileged one%s", strings.Join(missing, " and "), alternative)
}

// explainDir makes an error about a file in a directory say what to do. flag is the one that names the directory. Other errors are returned as they
// are.
func explainDir(err error, dir, flag string) error {
	path := pathOf(err)
	if path != dir && !isBelow(path, dir) && !isBelow(dir, path) {
		return err
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("--%s: the file system of %s is full: delete files there, or choose another directory (%w)", flag, dir, err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("--%s: %s is on a file system that is read-only: choose another directory", flag, dir)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("--%s: %s is not a directory: choose another one", flag, dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("--%s: there is no permission to use %s: %schoose another directory", flag, path, unlessRoot("run skiff as root, or "))
	}
	return err
}

// unlessRoot is advice for users who are not root.
func unlessRoot(advice string) string {
	if os.Geteuid() == 0 {
		return ""
	}
	return advice
}

// pathOf is the path that an error is about, or an empty string.
func pathOf(err error) string {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return filepath.Clean(path.Path)
	case errors.As(err, &link):
		return filepath.Clean(link.New)
	}
	return ""
}

// explainRead makes an error about a file in a data directory that this user may not read say what to do. Other errors are returned as they are.
func explainRead(err error) error {
	if path := pathOf(err); path != "" && errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("--data-dir: there is no permission to read %s: %suse --kubeconfig", path, unlessRoot("run skiff as root, or "))
	}
	return err
}

// adminConnection is the connection of an administrator: that of a kubeconfig, or else of the one in the data directory of a server.
func adminConnection(dataDir, kubeconfig string) (*rest.Config, error) {
	path := cmp.Or(kubeconfig, filepath.Join(dataDir, adminKubeconfig))
	connection, err := clientcmd.BuildConfigFromFlags("", path)
	switch {
	case err == nil:
		connection.Wrap(func(next http.RoundTripper) http.RoundTripper { return explainedTransport{next} })
		return connection, nil
	case kubeconfig != "":
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("--data-dir: no server has run with %s: use the --data-dir of one, or an administrator's --kubeconfig", dataDir)
	case errors.Is(err, fs.ErrPermission):
		return nil, explainRead(&fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission})
	}
	return nil, fmt.Errorf("--data-dir: %w", err)
}

// explainedTransport makes its errors say what to do when no server responds.
type explainedTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t explainedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if errors.Is(err, unix.ECONNREFUSED) {
		err = fmt.Errorf("no API server runs at %s: start it, or use the --kubeconfig of another one (%w)", r.URL.Host, err)
	}
	return response, err
}

// WrappedRoundTripper lets connections be closed.
func (t explainedTransport) WrappedRoundTripper() http.RoundTripper { return t.next }
