package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

const secretEncryption = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXY=}]}
`

// upstreamClient makes upstream's client of a cluster.
func upstreamClient(t *testing.T, c *cluster.Cluster) (*rest.Config, *kubernetes.Clientset) {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return config, set
}

// storeState stores objects and returns the revision of the last, and a token of a service account.
func storeState(t *testing.T, c *cluster.Cluster) (revision, token string) {
	t.Helper()
	ctx := t.Context()
	_, set := upstreamClient(t, c)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, StringData: map[string]string{"password": "correct horse"}}
	stored, err := set.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := set.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	issued, err := set.CoreV1().ServiceAccounts("default").CreateToken(ctx, "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return stored.ResourceVersion, issued.Status.Token
}

// checkState checks that a cluster has what storeState has stored, and nothing newer.
func checkState(t *testing.T, c *cluster.Cluster, revision, token string) {
	t.Helper()
	ctx := t.Context()
	config, set := upstreamClient(t, c)
	secret, err := set.CoreV1().Secrets("default").Get(ctx, "kept", metav1.GetOptions{})
	if err != nil || string(secret.Data["password"]) != "correct horse" || secret.ResourceVersion != revision {
		t.Errorf("the secret: %v, %v, want revision %s", secret, err, revision)
	}
	if _, err := set.CoreV1().ConfigMaps("default").Get(ctx, "later", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object that is newer than the snapshot: %v", err)
	}
	// A service account's token is still valid: its key was restored.
	as := rest.AnonymousClientConfig(config)
	as.BearerToken = token
	robot, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	self, err := robot.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || self.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Errorf("the service account: %v, %v", self, err)
	}
	// A client that has seen the lost changes must begin anew.
	watch, err := set.CoreV1().Secrets("default").Watch(ctx, metav1.ListOptions{ResourceVersion: revision})
	if err == nil {
		defer watch.Stop()
		event, ok := <-watch.ResultChan()
		if err = errors.New("no event"); ok {
			err = apierrors.FromObject(event.Object)
		}
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from revision %s: %v", revision, err)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after"}}
	if _, err := set.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

// A cluster that was lost is restored on another host from a snapshot and its passphrase: objects, encrypted ones among them, keys and CAs.
func TestSnapshotRestore(t *testing.T) {
	t.Parallel()
	first, snapshots := t.TempDir(), filepath.Join(t.TempDir(), "snapshots")
	encryption := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(encryption, []byte(secretEncryption), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Skiff(first, "--encryption-provider-config", encryption, "--snapshot-dir", snapshots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	revision, token := storeState(t, c)
	dataDir := filepath.Join(first, "data")
	out, err := runSkiff(t, "snapshot", "save", "--name=before-upgrade", "--data-dir", dataDir)
	if err != nil || !strings.HasPrefix(out, "saved before-upgrade-") || !strings.Contains(out, " in "+snapshots+": revision ") {
		t.Fatalf("skiff snapshot save: %v\n%s", err, out)
	}
	listed, err := runSkiff(t, "snapshot", "ls", "--snapshot-dir", snapshots)
	lines := strings.Split(strings.TrimSpace(listed), "\n")
	if err != nil || len(lines) != 2 || !strings.HasPrefix(lines[1], "before-upgrade-") {
		t.Fatalf("skiff snapshot ls: %v\n%s", err, listed)
	}
	name := strings.Fields(lines[1])[0]
	checkSealed(t, filepath.Join(snapshots, name))
	_, set := upstreamClient(t, c)
	later := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "later"}}
	if _, err := set.CoreV1().ConfigMaps("default").Create(t.Context(), later, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if out, err := runSkiff(t, "snapshot", "restore", name, "--replace", "--data-dir", dataDir, "--snapshot-dir", snapshots); err == nil || !strings.Contains(out, "is used by another skiff (process ") {
		t.Errorf("a restore over a running cluster: %v\n%s", err, out)
	}
	c.Stop()

	second := t.TempDir()
	restoredDir, passphrase := filepath.Join(second, "data"), filepath.Join(dataDir, "snapshot-passphrase")
	restore := func(snapshot, dir string, flags ...string) (string, error) {
		return runSkiff(t, append([]string{"snapshot", "restore", snapshot, "--data-dir", dir, "--snapshot-dir", snapshots, "--snapshot-passphrase-file", passphrase}, flags...)...)
	}
	checkDamagedRefused(t, filepath.Join(snapshots, name), restore)
	out, err = restore("latest", restoredDir)
	restoredEncryption := filepath.Join(restoredDir, "restored-files/encryption-provider-config")
	if err != nil || !strings.Contains(out, restoredEncryption) {
		t.Fatalf("skiff snapshot restore: %v\n%s", err, out)
	}
	moved, err := cluster.Skiff(second, "--encryption-provider-config", restoredEncryption)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { moved.Stop() })
	checkState(t, moved, revision, token)

	// In place, the state that it replaces is kept.
	out, err = restore(name, dataDir, "--replace")
	if err != nil || !strings.Contains(out, "what was there before is in "+filepath.Join(dataDir, "replaced")) {
		t.Fatalf("skiff snapshot restore --replace: %v\n%s", err, out)
	}
	if c, err = cluster.Skiff(first, "--encryption-provider-config", encryption, "--snapshot-dir", snapshots); err != nil {
		t.Fatal(err)
	}
	checkState(t, c, revision, token)
	if out, err := runSkiff(t, "snapshot", "prune", "--keep=0", "--snapshot-dir", snapshots); err == nil || !strings.Contains(out, "--keep: 0 is less than 1") {
		t.Errorf("skiff snapshot prune --keep=0: %v\n%s", err, out)
	}
	if out, err := runSkiff(t, "snapshot", "save", "--data-dir", dataDir, "--name", "last"); err != nil {
		t.Errorf("skiff snapshot save: %v\n%s", err, out)
	}
	if out, err := runSkiff(t, "snapshot", "prune", "--keep=1", "--snapshot-dir", snapshots); err != nil || out != "deleted "+name+"\n" {
		t.Errorf("skiff snapshot prune: %v\n%s", err, out)
	}
}

// Three servers are restored from a snapshot of any of them: one is restored, and the others join it.
func TestSnapshotRestoreServers(t *testing.T) {
	t.Parallel()
	s := startServers(t, 3)
	revision, token := storeState(t, s.running[1])
	dataDir := func(i int) string { return filepath.Join(s.dir, fmt.Sprint("server-", i), "data") }
	if out, err := runSkiff(t, "snapshot", "save", "--data-dir", dataDir(2)); err != nil {
		t.Fatalf("skiff snapshot save: %v\n%s", err, out)
	}
	if _, err := s.clients[1].CoreV1().ConfigMaps("default").Create(t.Context(), configMap("later"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	snapshots, passphrase := filepath.Join(dataDir(2), "snapshots"), filepath.Join(dataDir(2), "snapshot-passphrase")
	restore := func(i int) (string, error) {
		return runSkiff(t, "snapshot", "restore", "latest", "--replace", "--data-dir", dataDir(i), "--snapshot-dir", snapshots, "--snapshot-passphrase-file", passphrase)
	}
	if out, err := restore(0); err == nil || !strings.Contains(out, "is used by another skiff (process ") {
		t.Errorf("a restore over a running cluster: %v\n%s", err, out)
	}
	for _, server := range s.running {
		server.Stop()
	}
	out, err := restore(0)
	if err != nil || !strings.Contains(out, "let them join it") {
		t.Fatalf("skiff snapshot restore: %v\n%s", err, out)
	}
	if s.running[0], err = cluster.Server(s.dir, 0, "--cluster-init"); err != nil {
		t.Fatal(err)
	}
	joinToken, err := s.running[0].NodeToken("--server")
	if err != nil {
		t.Fatal(err)
	}
	joining := []string{"--join=" + s.running[0].URL, "--join-token=" + joinToken}
	for i := 1; i < 3; i++ {
		if err := os.RemoveAll(dataDir(i)); err != nil {
			t.Fatal(err)
		}
		if s.running[i], err = cluster.Server(s.dir, i, joining...); err != nil {
			t.Fatal(err)
		}
	}
	for i, server := range s.running {
		_, set := upstreamClient(t, server)
		if err := set.CoreV1().ConfigMaps("default").Delete(t.Context(), "after", metav1.DeleteOptions{}); err != nil && i > 0 {
			t.Error(err)
		}
		checkState(t, server, revision, token)
	}
	shown, err := runSkiff(t, "member", "ls", "--kubeconfig", s.running[2].Kubeconfig)
	if err != nil || strings.Count(shown, "https://127.0.0.1:") != 3 || strings.Contains(shown, "joining") {
		t.Errorf("skiff member ls: %v\n%s", err, shown)
	}
	// The restored cluster survives the loss of the server that was restored.
	s.running[0].Server[0].Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	eventually(ctx, t, "a write without the restored server", func(ctx context.Context) (bool, error) {
		_, set := upstreamClient(t, s.running[1])
		_, err := set.CoreV1().ConfigMaps("default").Create(ctx, configMap("without"), metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), nil
	})
}

// checkSealed checks that a snapshot shows nothing of what it contains.
func checkSealed(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"PRIVATE KEY", "/registry/", base64.StdEncoding.EncodeToString([]byte("correct horse"))} {
		if strings.Contains(string(content), text) {
			t.Errorf("the snapshot contains %q in plain text", text)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the snapshot: %v, %v", info.Mode(), err)
	}
}

// checkDamagedRefused checks that snapshots that are not what was written are refused, and that nothing of them is restored.
func checkDamagedRefused(t *testing.T, path string, restore func(snapshot, dir string, flags ...string) (string, error)) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(content)
	changed[len(changed)/2] ^= 1
	for what, damaged := range map[string][]byte{"changed": changed, "truncated": content[:len(content)-1]} {
		file, dir := filepath.Join(t.TempDir(), "snapshot"), filepath.Join(t.TempDir(), "data")
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := restore(file, dir); err == nil || !strings.Contains(out, "the snapshot is damaged or incomplete") {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
		if _, err := os.Stat(filepath.Join(dir, "etcd")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: something was restored: %v", what, err)
		}
	}
}

// Scheduled snapshots replace each other; those that a user has saved are kept.
func TestSnapshotSchedule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, err := cluster.Skiff(dir, "--snapshot-schedule=@every 1s", "--snapshot-retention=2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	dataDir := filepath.Join(dir, "data")
	if out, err := runSkiff(t, "snapshot", "save", "--data-dir", dataDir); err != nil {
		t.Fatalf("skiff snapshot save: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	seen := map[string]bool{}
	for len(seen) < 4 {
		listed, err := runSkiff(t, "snapshot", "ls", "--data-dir", dataDir)
		if err != nil || strings.Count(listed, "\nmanual-") != 1 || strings.Count(listed, "\nscheduled-") > 3 {
			t.Fatalf("skiff snapshot ls: %v\n%s", err, listed)
		}
		for line := range strings.Lines(listed) {
			if name := strings.Fields(line)[0]; strings.HasPrefix(name, "scheduled-") {
				seen[name] = true
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("only %d scheduled snapshots were saved:\n%s", len(seen), c.Server[0].Log(20))
		}
		time.Sleep(50 * time.Millisecond)
	}
}
