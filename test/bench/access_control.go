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
	// accessLimit is how many percent of server CPU the checks may add to a create.
	accessLimit = 15
	// accessRounds alternate between both servers, so that other load on the host affects both.
	accessRounds = 12
	benchUser    = "bench-user"
)

// measureAccessControl measures what RBAC, admission, audit and fairness together add to a create: two servers, one with defaults
// and an audit log, one with all of them disabled, and the same creates by an unprivileged user.
func measureAccessControl(side, dir string, o options) ([]Row, error) {
	if side != "skiff" {
		return nil, nil // compares skiff with itself
	}
	tokens := filepath.Join(dir, "tokens.csv")
	policy := filepath.Join(dir, "audit.yaml")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(tokens, []byte(benchUser+"-token,"+benchUser+",1\n"), 0o600); err != nil {
		return nil, err
	}
	// One event per request, at stage ResponseComplete: the first example policy of Kubernetes' documentation.
	const metadata = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n"
	if err := os.WriteFile(policy, []byte(metadata), 0o600); err != nil {
		return nil, err
	}
	pluginNames, _ := admission.Names()
	profiling := fmt.Sprintf("--profiling=%t", o.Profiles != "")
	withChecks, err := newAccessServer(filepath.Join(dir, "with-checks"), o,
		profiling, "--token-auth-file="+tokens, "--audit-policy-file="+policy, "--audit-log-path="+filepath.Join(dir, "audit.log"))
	if err != nil {
		return nil, err
	}
	defer withChecks.cluster.Stop()
	withoutChecks, err := newAccessServer(filepath.Join(dir, "without-checks"), o,
		profiling, "--token-auth-file="+tokens, "--authorization-mode=AlwaysAllow", "--enable-priority-and-fairness=false",
		"--disable-admission-plugins="+strings.Join(pluginNames, ","))
	if err != nil {
		return nil, err
	}
	defer withoutChecks.cluster.Stop()
	if err := withChecks.allow(); err != nil {
		return nil, err
	}
	sides := []*accessServer{withChecks, withoutChecks}
	var rows []Row
	var all [2]time.Duration
	for _, kind := range []string{"configmap", "pod"} {
		if err := rounds(sides, kind); err != nil {
			return nil, fmt.Errorf("create %s: %w", kind, err)
		}
		used := [2]time.Duration{withChecks.median(), withoutChecks.median()}
		all[0], all[1] = all[0]+used[0], all[1]+used[1]
		name := "create " + kind + " by an unprivileged user"
		rows = append(rows,
			Row{Name: name + ", with access control: server CPU", Value: float64(used[0].Nanoseconds()) / 1000, Unit: "µs"},
			Row{Name: name + ", without access control: server CPU", Value: float64(used[1].Nanoseconds()) / 1000, Unit: "µs"},
			Row{Name: name + ": added by RBAC, admission, audit, fairness", Value: addedPercent(used), Unit: "%", Limit: accessLimit})
	}
	return append(rows, Row{Name: "RBAC + admission + audit + fairness: added server CPU of a create", Value: addedPercent(all), Unit: "%", Limit: accessLimit}), nil
}

// rounds alternates creates between both servers; each goes first equally often.
func rounds(sides []*accessServer, kind string) error {
	for _, side := range sides {
		side.used = nil
	}
	for round := range accessRounds + 2 {
		for i := range sides {
			side := sides[(round+i)%len(sides)]
			used, err := side.create(kind, round)
			if err != nil {
				return err
			}
			if round > 1 { // the first ones warm both up
				side.used = append(side.used, used/time.Duration(side.Requests/accessRounds))
			}
		}
	}
	return nil
}

func addedPercent(used [2]time.Duration) float64 {
	return (float64(used[0])/float64(used[1]) - 1) * 100
}

// accessServer is one of the two servers that are compared.
type accessServer struct {
	*bench
	name  string
	used  []time.Duration // CPU per create, by round
	user  *clientset.Clientset
	admin *clientset.Clientset
}

func newAccessServer(dir string, o options, flags ...string) (*accessServer, error) {
	c, err := cluster.Skiff(dir, flags...)
	if err != nil {
		return nil, err
	}
	b, err := newBench(c, o)
	if err != nil {
		c.Stop()
		return nil, err
	}
	side := &accessServer{bench: b, name: filepath.Base(dir)}
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

// median is the median CPU time of a create over all rounds, so that other load on the host does not count.
func (s *accessServer) median() time.Duration {
	slices.Sort(s.used)
	return s.used[len(s.used)/2]
}

// allow gives the user its permissions, and its pods the service account that a controller would create.
func (s *accessServer) allow() error {
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

// create sends one round of requests and returns the server's CPU time.
func (s *accessServer) create(kind string, round int) (time.Duration, error) {
	ctx := context.Background()
	n := s.Requests / accessRounds
	used, _, err := s.cpu(s.name+" "+kind, func() error {
		return s.parallel(n, func(i int) error {
			name := fmt.Sprintf("bench-%d-%d", round, i)
			if kind == "configmap" {
				_, err := s.user.CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{})
				return err
			}
			p := pod(name)
			// The token volume would make the object larger, which is not a cost of access control.
			p.Spec.AutomountServiceAccountToken = new(bool)
			_, err := s.user.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
			return err
		})
	})
	return used, err
}
