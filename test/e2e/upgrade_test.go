package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/cluster"
)

// upgrades are the skiff of bin/ and versions of it that are minor versions ahead.
type upgrades struct {
	own, next, afterNext                     cluster.Program
	ownMinor, nextMinor, nextSkiff, ownSkiff string
}

func buildUpgrades(t *testing.T) (u upgrades) {
	t.Helper()
	var err error
	if u.next, err = cluster.BuildAhead(t.TempDir(), 1); err != nil {
		t.Fatal(err)
	}
	if u.afterNext, err = cluster.BuildAhead(t.TempDir(), 2); err != nil {
		t.Fatal(err)
	}
	own, err := u.own.Release()
	if err != nil {
		t.Fatal(err)
	}
	next, err := u.next.Release()
	if err != nil {
		t.Fatal(err)
	}
	u.ownMinor, u.ownSkiff, u.nextMinor, u.nextSkiff = own.Minor(), own.Skiff, next.Minor(), next.Skiff
	return u
}

// swap ends a server and starts it with another program.
func (s *servers) swap(t *testing.T, i int, program cluster.Program) {
	t.Helper()
	s.running[i].Server[0].Terminate()
	server, err := program.Server(s.dir, i, s.flags...)
	if err != nil {
		t.Fatal(err)
	}
	s.running[i] = server
}

// refuse ends a server, checks that another program does not start in its place, and starts the former again.
func (s *servers) refuse(t *testing.T, i int, program, former cluster.Program, want string) {
	t.Helper()
	s.running[i].Server[0].Terminate()
	refused, err := program.StartServer(s.dir, i, s.flags...)
	if err != nil {
		t.Fatal(err)
	}
	s.running[i] = refused
	if code := refused.Server[0].Wait(); code != 1 || !strings.Contains(refused.Server[0].Log(3), want) {
		t.Errorf("it exits with %d, want %q in its log:\n%s", code, want, refused.Server[0].Log(3))
	}
	s.swap(t, i, former)
}

// TestUpgradeServers upgrades three servers one by one. While two versions run, each may be started again. A version that is too new is refused before, one that
// is too old after, and neither changes anything.
func TestUpgradeServers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	u := buildUpgrades(t)
	s := startServers(t, 3)
	revisions := map[string]string{}
	for i := range 9 {
		name := fmt.Sprint("object-", i)
		object, err := s.clients[i%3].CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		revisions[name] = string(object.UID) + " " + object.ResourceVersion
	}
	compare := func(when string) {
		t.Helper()
		for i, client := range s.clients {
			for name, want := range revisions {
				object, err := client.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
				if err != nil || string(object.UID)+" "+object.ResourceVersion != want {
					t.Errorf("%s, server %d: %v, %v", when, i, object, err)
				}
			}
		}
	}
	s.refuse(t, 1, u.afterNext, u.own, "start "+u.nextMinor+" on it first")
	s.swap(t, 1, u.next)
	compare("one server upgraded")
	s.swap(t, 2, u.own) // a reboot meanwhile
	compare("another server restarted")
	shown, err := runSkiff(t, "member", "ls", "--kubeconfig", s.running[2].Kubeconfig)
	if err != nil || strings.Count(shown, u.nextSkiff+"\n") != 1 || strings.Count(shown, u.ownSkiff+"\n") != 2 {
		t.Errorf("skiff member ls: %v\n%s", err, shown)
	}
	s.refuse(t, 1, u.afterNext, u.next, "have "+u.ownSkiff+": start "+u.nextMinor+" on all servers first")
	s.refuse(t, 1, u.own, u.next, "start "+u.nextMinor+" again, or restore a snapshot of "+u.ownMinor)
	s.swap(t, 2, u.next)
	s.swap(t, 0, u.next)
	compare("all servers upgraded")

	// The next version, run beside the cluster.
	out, err := exec.CommandContext(ctx, string(u.afterNext), "upgrade", "--check", "--kubeconfig", s.running[0].Kubeconfig, "--data-dir", t.TempDir()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "3, the oldest has "+u.nextSkiff) || strings.Count(string(out), ". server ") != 3 {
		t.Errorf("skiff upgrade --check: %v\n%s", err, out)
	}
	out, err = exec.CommandContext(ctx, string(u.afterNext), "upgrade", "--check", "--data-dir", s.running[0].Dir+"/data").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "was written by "+u.nextSkiff) {
		t.Errorf("skiff upgrade --check on the data directory: %v\n%s", err, out)
	}
	if out, err := runSkiff(t, "upgrade", "--check", "--data-dir", s.running[0].Dir+"/data"); err == nil || !strings.Contains(out, "the upgrade would be refused") {
		t.Errorf("skiff upgrade --check of the former version: %v\n%s", err, out)
	}
}
