package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"skiff/internal/apiserver/admission"
	"skiff/test/cluster"
)

const (
	// gateLimit is how many percent the gatekeeper may add to a create.
	gateLimit = 15
	// gateRounds are taken on both servers in turn, so that what else the machine does falls on both.
	gateRounds = 12
	benchUser  = "bench-user"
)

// measureGate measures what RBAC, admission, audit and fairness together add to a create: two servers, one with everything as it is by
// default and an audit log, one with nothing of it, and the same creates by a user without privileges of its own.
func measureGate(side, dir string, o options) ([]Row, error) {
	if side != "skiff" {
		return nil, nil // skiff against itself
	}
	tokens := filepath.Join(dir, "tokens.csv")
	policy := filepath.Join(dir, "audit.yaml")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(tokens, []byte(benchUser+"-token,"+benchUser+",1\n"), 0o600); err != nil {
		return nil, err
	}
	// One event for each request, when it has been answered: the policy that Kubernetes' own documentation begins with.
	const metadata = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n"
	if err := os.WriteFile(policy, []byte(metadata), 0o600); err != nil {
		return nil, err
	}
	rules, _ := admission.Names()
	profiling := fmt.Sprintf("--profiling=%t", o.profiles != "")
	guarded, err := newGateSide(filepath.Join(dir, "guarded"), o,
		profiling, "--token-auth-file="+tokens, "--audit-policy-file="+policy, "--audit-log-path="+filepath.Join(dir, "audit.log"))
	if err != nil {
		return nil, err
	}
	defer guarded.cluster.Stop()
	open, err := newGateSide(filepath.Join(dir, "open"), o,
		profiling, "--token-auth-file="+tokens, "--authorization-mode=AlwaysAllow", "--enable-priority-and-fairness=false",
		"--disable-admission-plugins="+strings.Join(rules, ","))
	if err != nil {
		return nil, err
	}
	defer open.cluster.Stop()
	if err := guarded.allow(); err != nil {
		return nil, err
	}
	sides := []*gateSide{guarded, open}
	var rows []Row
	var all [2]time.Duration
	for _, kind := range []string{"configmap", "pod"} {
		if err := rounds(sides, kind); err != nil {
			return nil, fmt.Errorf("create %s: %w", kind, err)
		}
		used := [2]time.Duration{guarded.usual(), open.usual()}
		all[0], all[1] = all[0]+used[0], all[1]+used[1]
		name := "create " + kind + " by a plain user"
		rows = append(rows,
			Row{Name: name + ", guarded: server CPU", Value: float64(used[0].Nanoseconds()) / 1000, Unit: "µs"},
			Row{Name: name + ", unguarded: server CPU", Value: float64(used[1].Nanoseconds()) / 1000, Unit: "µs"},
			Row{Name: name + ": added by RBAC, admission, audit, fairness", Value: added(used), Unit: "%", Limit: gateLimit})
	}
	return append(rows, Row{Name: "RBAC + admission + audit + fairness: added server CPU of a create", Value: added(all), Unit: "%", Limit: gateLimit}), nil
}

// rounds lets both sides create objects in turn, each going first as often as the other.
func rounds(sides []*gateSide, kind string) error {
	for _, side := range sides {
		side.used = nil
	}
	for round := range gateRounds + 2 {
		for i := range sides {
			side := sides[(round+i)%len(sides)]
			used, err := side.create(kind, round)
			if err != nil {
				return err
			}
			if round > 1 { // the first ones warm both up
				side.used = append(side.used, used/time.Duration(side.requests/gateRounds))
			}
		}
	}
	return nil
}

func added(used [2]time.Duration) float64 { return (float64(used[0])/float64(used[1]) - 1) * 100 }

// gateSide is one of the two servers.
type gateSide struct {
	*bench
	name  string
	used  []time.Duration // a create, in each round
	user  *clientset.Clientset
	admin *clientset.Clientset
}

func newGateSide(dir string, o options, flags ...string) (*gateSide, error) {
	c, err := cluster.Skiff(dir, flags...)
	if err != nil {
		return nil, err
	}
	b, err := newBench(c, o)
	if err != nil {
		c.Stop()
		return nil, err
	}
	side := &gateSide{bench: b, name: filepath.Base(dir)}
	if side.admin, err = b.client(protobufType); err != nil {
		c.Stop()
		return nil, err
	}
	plain := rest.AnonymousClientConfig(b.config)
	plain.BearerToken, plain.QPS = benchUser+"-token", -1
	plain.ContentType, plain.AcceptContentTypes = protobufType, protobufType
	if side.user, err = clientset.NewForConfig(plain); err != nil {
		c.Stop()
		return nil, err
	}
	return side, nil
}

// usual is what a create costs in half of the rounds at most: what the machine does besides falls on some of them.
func (s *gateSide) usual() time.Duration {
	slices.Sort(s.used)
	return s.used[len(s.used)/2]
}

// allow gives the user what it needs, and its pods the service account that a controller would make.
func (s *gateSide) allow() error {
	ctx := context.Background()
	if _, err := s.admin.RbacV1().RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: benchUser},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: benchUser}},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "edit"},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := s.admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	return err
}

// create makes a share of the requests and returns the server's CPU.
func (s *gateSide) create(kind string, round int) (time.Duration, error) {
	ctx := context.Background()
	n := s.requests / gateRounds
	used, _, err := s.cpu(s.name+" "+kind, func() error {
		return s.parallel(n, func(i int) error {
			name := fmt.Sprintf("gate-%d-%d", round, i)
			if kind == "configmap" {
				_, err := s.user.CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{})
				return err
			}
			p := pod(name)
			// The token volume would make the object larger; that is not the gatekeeper's doing.
			p.Spec.AutomountServiceAccountToken = new(bool)
			_, err := s.user.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
			return err
		})
	})
	return used, err
}
