package e2e

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/kubelet/bootstrap"
	"skiff/test/cluster"
)

// runSkiff runs the program and returns its output.
func runSkiff(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(root, "bin/skiff"), args...).CombinedOutput()
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return string(out), err
}

// A node that cannot join reports the reason and what to do, and sends no credentials to an untrusted server.
func TestJoinRejected(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a node")
	}
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir(), "--without=scheduler")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	create := func(flags ...string) string {
		t.Helper()
		token, err := c.NodeToken(flags...)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	good := create("--description=for the test")
	shown, err := runSkiff(t, "token", "ls", "--kubeconfig", c.Kubeconfig)
	if err != nil || !strings.Contains(shown, good[:6]) || !strings.Contains(shown, "for the test") || strings.Contains(shown, good[7:23]) {
		t.Errorf("skiff token ls: %v\n%s", err, shown)
	}
	deleted := create()
	if out, err := runSkiff(t, "token", "delete", deleted, "--kubeconfig", c.Kubeconfig); err != nil || out != "deleted "+deleted[:6]+"\n" {
		t.Errorf("skiff token delete: %v\n%s", err, out)
	}
	flipped := map[bool]string{true: "1", false: "0"}[strings.HasSuffix(good, "0")]
	expired := create("--ttl=1s")
	time.Sleep(1100 * time.Millisecond)
	for what, test := range map[string]struct{ token, want string }{
		"another server":    {good[:len(good)-1] + flipped, "this is not the server the token was created for"},
		"expired":           {expired, "the server does not accept the token: it has expired"},
		"deleted":           {deleted, "create a new one with 'skiff token create'"},
		"guessed":           {good[:7] + "0000000000000000" + good[23:], "the server does not accept the token"},
		"without rights":    {create("--groups=system:bootstrappers:others"), "it needs the group system:bootstrappers:kubeadm:default-node-token"},
		"without the hash":  {good[:23], "--token: not a token as printed by `skiff token create`"},
		"without any token": {"", "create one with 'skiff token create' on the server"},
	} {
		t.Run(what, func(t *testing.T) {
			directory := t.TempDir()
			out, err := runSkiff(t, "agent", "--server", c.URL, "--token", test.token, "--data-dir", directory, "--node-name=stranger")
			var ended *exec.ExitError
			if !errors.As(err, &ended) || ended.ExitCode() != 1 || !strings.Contains(out, test.want) {
				t.Errorf("%v, want %q:\n%s", err, test.want, out)
			}
			if left, err := os.ReadDir(filepath.Join(directory, "kubelet/pki")); err != nil || len(left) > 0 {
				t.Errorf("files left: %v, %v", left, err)
			}
		})
	}
	if out, err := runSkiff(t, "token", "create", "--groups=system:masters", "--kubeconfig", c.Kubeconfig); err == nil || !strings.Contains(out, "--groups") {
		t.Errorf("a token for administrators: %v\n%s", err, out)
	}
}

// The name of a node belongs to the host that joined with it: another host does not get a certificate for it, until an administrator frees it.
func TestNodeNameCannotBeTaken(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir(), "--without=scheduler")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	token, err := c.NodeToken()
	if err != nil {
		t.Fatal(err)
	}
	join := func(host string) error {
		log := slog.New(slog.DiscardHandler)
		return bootstrap.Join{
			// The first server is gone.
			Servers: []string{"https://127.0.0.1:1", c.URL}, Certificate: bootstrap.NodeClient(host, "one", log), CAFile: filepath.Join(host, "ca.crt"), Kubeconfig: filepath.Join(host, "kubeconfig"),
			NewClient: func(config *rest.Config) (*client.Client, error) {
				return client.New(config, api.Scheme(), api.Named())
			}, Log: log,
		}.Run(t.Context(), token)
	}
	first, second := t.TempDir(), t.TempDir()
	if err := join(first); err != nil {
		t.Fatal(err)
	}
	const want = "Denied: NodeNameTaken: the node name one belongs to another host"
	if err := join(second); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("another host: %v", err)
	}
	if err := join(first); err != nil {
		t.Errorf("the same host: %v", err)
	}
	if out, err := runSkiff(t, "node", "remove", "one", "--kubeconfig", c.Kubeconfig); err != nil || out != "the name of node one is free\n" {
		t.Errorf("skiff node remove: %v\n%s", err, out)
	}
	if err := join(second); err != nil {
		t.Errorf("another host when the name is free: %v", err)
	}
	if err := join(t.TempDir()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a third host: %v", err)
	}
}
