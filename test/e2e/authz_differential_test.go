package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/authz"
	"skiff/test/cluster"
)

// TestAuthorizationLikeUpstream sends thousands of access reviews to upstream's API server and to skiff's authorizers, which are
// given upstream's own objects, and compares decisions and reasons.
func TestAuthorizationLikeUpstream(t *testing.T) {
	t.Parallel()
	upstream, err := cluster.UpstreamAPI(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	if err := upstream.ControllerManager("--controllers=clusterrole-aggregation-controller"); err != nil {
		t.Fatal(err)
	}
	config, err := upstream.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	createRoles(ctx, t, k)
	createNodeFixtures(ctx, t, k)
	waitForUpstream(ctx, t, k)

	ours, err := authz.New(authz.Config{Modes: []string{authz.ModeNode, authz.ModeRBAC}}, authz.NewStaticPolicy(policyOf(ctx, t, k)), graphOf(ctx, t, k), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	reviews := reviewTable()
	if len(reviews) < 400 {
		t.Fatalf("only %d reviews", len(reviews))
	}
	statuses := reviewAll(ctx, t, k, reviews)
	var allowed, otherReason int
	for i, review := range reviews {
		want := statuses[i]
		a, parseErr := authz.ReviewAttributes(subjectOf(&review), review.ResourceAttributes, review.NonResourceAttributes)
		decision, reason, err := ours.Authorize(ctx, a)
		if err != nil || parseErr != nil {
			t.Errorf("%s: %v %v", describeReview(&review), err, parseErr)
			continue
		}
		got := authorizationv1.SubjectAccessReviewStatus{Allowed: decision == authz.Allow, Denied: decision == authz.Deny, Reason: reason}
		if got.Allowed {
			allowed++
		}
		// Where several bindings allow a request, upstream names the one it finds first.
		if got.Allowed && want.Allowed && got.Reason != "" && want.Reason != "" && got.Reason != want.Reason {
			otherReason++
			continue
		}
		if got.Allowed != want.Allowed || got.Denied != want.Denied || sortedLines(got.Reason) != sortedLines(want.Reason) || want.EvaluationError != "" {
			t.Errorf("%s:\n ours   %+v\n theirs %+v", describeReview(&review), got, want)
		}
	}
	t.Logf("%d reviews, %d allowed, of which %d name another binding", len(reviews), allowed, otherReason)
	if allowed < len(reviews)/20 || otherReason > allowed/5 {
		t.Error("too few reviews are allowed or too few denied")
	}
}

// sortedLines sorts the lines about roles that do not exist: upstream's order is random.
func sortedLines(reason string) string {
	if inner, ok := strings.CutPrefix(reason, "rbac: RBAC: ["); ok {
		if first, second, ok := strings.Cut(strings.TrimSuffix(inner, "]"), ", "); ok && first > second {
			return "rbac: RBAC: [" + second + ", " + first + "]"
		}
	}
	return reason
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func bindTo(kind, name string, subjects ...rbacv1.Subject) (rbacv1.RoleRef, []rbacv1.Subject) {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}, subjects
}

func subject(kind, name string) rbacv1.Subject {
	if kind == rbacv1.ServiceAccountKind {
		namespace, account, _ := strings.Cut(name, "/")
		return rbacv1.Subject{Kind: kind, Namespace: namespace, Name: account}
	}
	return rbacv1.Subject{Kind: kind, APIGroup: rbacv1.GroupName, Name: name}
}

// createRoles adds roles and bindings of every form to those of the bootstrap policy.
func createRoles(ctx context.Context, t *testing.T, k clientset.Interface) {
	t.Helper()
	must[*corev1.Namespace](t)(k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prod"}}, metav1.CreateOptions{}))
	rule := func(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), APIGroups: strings.Split(groups, ","), Resources: strings.Split(resources, ","), ResourceNames: names}
	}
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"names":     {rule("get,update,delete", "", "configmaps,secrets", "web", "pull")},
		"scale":     {rule("get,update,patch", "*", "*/scale")},
		"star-sub":  {rule("get", "", "pods/*")},
		"all-apps":  {rule("*", "apps", "*")},
		"all-pods":  {rule("*", "", "pods")},
		"binder":    {rule("bind,escalate", rbacv1.GroupName, "clusterroles", "view")},
		"urls":      {{Verbs: []string{"get", "post"}, NonResourceURLs: []string{"/metrics", "/debug/*", "/logs*"}}},
		"all-urls":  {{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
		"imitator":  {rule("impersonate", "", "users,groups"), rule("impersonate", "authentication.k8s.io", "userextras/scopes,uids")},
		"plus-view": {rule("get,list,watch", "example.com", "widgets")},
	} {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
		if name == "plus-view" {
			role.Labels = map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}
		}
		must[*rbacv1.ClusterRole](t)(k.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}))
		if name == "plus-view" {
			continue
		}
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "to-" + name}}
		b.RoleRef, b.Subjects = bindTo("ClusterRole", name, subject("User", name+"-user"), subject("Group", name+"-group"), subject("ServiceAccount", "prod/"+name))
		must[*rbacv1.ClusterRoleBinding](t)(k.RbacV1().ClusterRoleBindings().Create(ctx, b, metav1.CreateOptions{}))
	}
	gone := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "to-gone"}}
	gone.RoleRef, gone.Subjects = bindTo("ClusterRole", "gone", subject("User", "lost"))
	must[*rbacv1.ClusterRoleBinding](t)(k.RbacV1().ClusterRoleBindings().Create(ctx, gone, metav1.CreateOptions{}))

	must[*rbacv1.Role](t)(k.RbacV1().Roles("prod").Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Rules: []rbacv1.PolicyRule{rule("create,get", "", "configmaps,pods/exec")},
	}, metav1.CreateOptions{}))
	for name, b := range map[string]rbacv1.RoleBinding{
		"viewers": {RoleRef: first(bindTo("ClusterRole", "view")), Subjects: []rbacv1.Subject{subject("User", "viewer"), {Kind: "ServiceAccount", Name: "local", Namespace: "prod"}}},
		"editors": {RoleRef: first(bindTo("ClusterRole", "edit")), Subjects: []rbacv1.Subject{subject("Group", "editors")}},
		"admins":  {RoleRef: first(bindTo("ClusterRole", "admin")), Subjects: []rbacv1.Subject{subject("User", "owner")}},
		"locals":  {RoleRef: first(bindTo("Role", "local")), Subjects: []rbacv1.Subject{subject("User", "local-user"), subject("Group", "locals")}},
		"gone":    {RoleRef: first(bindTo("Role", "gone")), Subjects: []rbacv1.Subject{subject("User", "lost")}},
	} {
		b.Name = name
		must[*rbacv1.RoleBinding](t)(k.RbacV1().RoleBindings("prod").Create(ctx, &b, metav1.CreateOptions{}))
	}
}

func first(ref rbacv1.RoleRef, _ []rbacv1.Subject) rbacv1.RoleRef { return ref }

// createNodeFixtures creates pods on two nodes and the objects they refer to, volumes, attachments and slices.
func createNodeFixtures(ctx context.Context, t *testing.T, k clientset.Interface) {
	t.Helper()
	for _, name := range []string{"default", "robot"} {
		must[*corev1.ServiceAccount](t)(k.CoreV1().ServiceAccounts("prod").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	}
	for i, node := range []string{"n1", "n2"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "pod-" + node},
			Spec: corev1.PodSpec{
				NodeName: node, ServiceAccountName: []string{"robot", "default"}[i], ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull-" + node}},
				Containers: []corev1.Container{{Name: "c", Image: "i", EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "env-" + node}}}}}},
				Volumes: []corev1.Volume{
					{Name: "shared", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "shared"}}},
					{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + node}}},
				},
				ResourceClaims: []corev1.PodResourceClaim{{Name: "d", ResourceClaimName: ptr.To("device-" + node)}},
			},
		}
		must[*corev1.Pod](t)(k.CoreV1().Pods("prod").Create(ctx, pod, metav1.CreateOptions{}))
		must[*corev1.PersistentVolume](t)(k.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + node},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				ClaimRef: &corev1.ObjectReference{Namespace: "prod", Name: "claim-" + node},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver: "d.example.com", VolumeHandle: node, NodeStageSecretRef: &corev1.SecretReference{Namespace: "kube-system", Name: "stage-" + node},
					ControllerPublishSecretRef: &corev1.SecretReference{Namespace: "kube-system", Name: "controller-" + node},
				}},
			},
		}, metav1.CreateOptions{}))
		must[*storagev1.VolumeAttachment](t)(k.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "va-" + node},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: "d.example.com", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv-" + node)}},
		}, metav1.CreateOptions{}))
		must[*resourcev1.ResourceSlice](t)(k.ResourceV1().ResourceSlices().Create(ctx, &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node},
			Spec:       resourcev1.ResourceSliceSpec{Driver: "d.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}},
		}, metav1.CreateOptions{}))
	}
}

// waitForUpstream waits until upstream's authorizers have received the objects from their informers.
func waitForUpstream(ctx context.Context, t *testing.T, k clientset.Interface) {
	t.Helper()
	n2 := []string{"system:nodes"}
	for _, spec := range []authorizationv1.SubjectAccessReviewSpec{
		reviewOf("system:node:n2", n2, "get", "resource.k8s.io", "resourceslices", "", "slice-n2", ""),
		reviewOf("system:node:n2", n2, "get", "storage.k8s.io", "volumeattachments", "", "va-n2", ""),
		reviewOf("system:node:n2", n2, "get", "", "secrets", "kube-system", "stage-n2", ""),
		reviewOf("local-user", nil, "create", "", "configmaps", "prod", "", ""),
		reviewOf("viewer", nil, "get", "example.com", "widgets", "prod", "", ""),
		reviewOf("owner", nil, "get", "example.com", "widgets", "prod", "", ""),
		reviewOf("imitator-user", nil, "impersonate", "", "users", "", "", ""),
	} {
		eventually(ctx, t, "upstream allows "+describeReview(&spec), func(ctx context.Context) (bool, error) {
			created, err := k.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
			return err == nil && created.Status.Allowed, err
		})
	}
}

func graphOf(ctx context.Context, t *testing.T, k clientset.Interface) *authz.NodeGraph {
	t.Helper()
	g := authz.NewNodeGraph()
	for _, o := range pointers(must[*corev1.PodList](t)(k.CoreV1().Pods("").List(ctx, metav1.ListOptions{})).Items) {
		g.Set(o)
	}
	for _, o := range pointers(must[*corev1.PersistentVolumeList](t)(k.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})).Items) {
		g.Set(o)
	}
	for _, o := range pointers(must[*storagev1.VolumeAttachmentList](t)(k.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})).Items) {
		g.Set(o)
	}
	for _, o := range pointers(must[*resourcev1.ResourceSliceList](t)(k.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})).Items) {
		g.Set(o)
	}
	return g
}

func reviewOf(user string, groups []string, verb, group, resource, namespace, name, nodeSelector string) authorizationv1.SubjectAccessReviewSpec {
	resource, subresource, _ := strings.Cut(resource, "/")
	attributes := &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Version: "v1", Resource: resource, Subresource: subresource, Namespace: namespace, Name: name}
	if nodeSelector != "" {
		attributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{
			{Key: "spec.nodeName", Operator: metav1.FieldSelectorOpIn, Values: []string{nodeSelector}},
		}}
	}
	return authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: attributes}
}

// reviewTable combines identities with requests.
func reviewTable() []authorizationv1.SubjectAccessReviewSpec {
	type identity struct {
		user   string
		groups []string
	}
	account := func(namespace, name string) identity {
		return identity{"system:serviceaccount:" + namespace + ":" + name, []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}}
	}
	authenticated := func(user string, groups ...string) identity {
		return identity{user, append(groups, "system:authenticated")}
	}
	people := []identity{
		{"system:anonymous", []string{"system:unauthenticated"}}, authenticated("nobody"), authenticated("root", "system:masters"), authenticated("viewer"),
		authenticated("e", "editors"), authenticated("owner"), authenticated("local-user"), authenticated("x", "locals"), authenticated("lost"),
		authenticated("names-user"), authenticated("s", "scale-group"), account("prod", "star-sub"), authenticated("all-apps-user"), authenticated("all-pods-user"),
		authenticated("binder-user"), authenticated("imitator-user"), account("prod", "local"), account("default", "local"),
		authenticated("system:kube-scheduler"), authenticated("system:kube-controller-manager"), authenticated("system:kube-proxy"), authenticated("m", "system:monitoring"),
		account("kube-system", "deployment-controller"), account("kube-system", "generic-garbage-collector"), account("kube-system", "horizontal-pod-autoscaler"),
		account("kube-system", "namespace-controller"), account("kube-system", "kube-dns"), account("default", "default"),
		authenticated("system:node:n1", "system:nodes"), authenticated("system:node:n2"), authenticated("system:node:", "system:nodes"),
	}
	type target struct{ group, resource, namespace, name string }
	targets := []target{
		{"", "pods", "prod", "pod-n1"}, {"", "pods", "", ""}, {"", "pods/log", "prod", "pod-n1"}, {"", "pods/exec", "prod", "pod-n2"}, {"", "pods/status", "prod", "pod-n1"},
		{"", "pods/*", "prod", ""}, {"", "secrets", "prod", "pull-n1"}, {"", "secrets", "prod", "pull-n2"}, {"", "secrets", "prod", "pull"}, {"", "secrets", "kube-system", "stage-n1"},
		{"", "secrets", "", ""}, {"", "configmaps", "prod", "web"}, {"", "configmaps", "prod", "env-n1"}, {"", "configmaps", "kube-system", "extension-apiserver-authentication"},
		{"", "nodes", "", "n1"}, {"", "nodes/proxy", "", "n1"}, {"", "namespaces", "prod", "prod"}, {"", "namespaces", "", ""}, {"", "serviceaccounts/token", "prod", "robot"},
		{"", "users", "", "bob"}, {"authentication.k8s.io", "userextras/scopes", "", "x"}, {"", "persistentvolumes", "", "pv-n1"}, {"", "persistentvolumeclaims", "prod", "claim-n1"},
		{"apps", "deployments", "prod", "d"}, {"apps", "deployments/scale", "prod", "d"}, {"", "replicationcontrollers/scale", "", ""}, {"example.com", "widgets", "prod", "w"},
		{"example.com", "widgets/scale", "prod", "w"}, {rbacGroup, "clusterroles", "", "view"}, {rbacGroup, "rolebindings", "prod", "viewers"}, {"*", "*", "", ""},
		{"", "*", "prod", ""}, {"coordination.k8s.io", "leases", "kube-node-lease", "n1"}, {"coordination.k8s.io", "leases", "kube-system", "kube-scheduler"},
		{"storage.k8s.io", "volumeattachments", "", "va-n1"}, {"storage.k8s.io", "csinodes", "", "n1"}, {"resource.k8s.io", "resourceslices", "", "slice-n1"},
		{"resource.k8s.io", "resourceclaims", "prod", "device-n1"}, {"authorization.k8s.io", "selfsubjectaccessreviews", "", ""}, {"events.k8s.io", "events", "prod", ""},
		{"certificates.k8s.io", "podcertificaterequests", "prod", ""}, {"", "pods/log/extra", "prod", "pod-n1"},
	}
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "bind", "escalate", "impersonate", "*"}
	var reviews []authorizationv1.SubjectAccessReviewSpec
	for i, who := range people {
		for j, what := range targets {
			for l, verb := range verbs {
				// Every pair of identity and target is tested with every third verb, nodes with all of them.
				if (i+j+l)%3 != 0 && !strings.HasPrefix(who.user, "system:node") {
					continue
				}
				reviews = append(reviews, reviewOf(who.user, who.groups, verb, what.group, what.resource, what.namespace, what.name, ""))
			}
		}
		for _, path := range []string{"/", "/api", "/apis/apps", "/healthz", "/healthz/etcd", "/livez", "/metrics", "/openapi/v3", "/version", "/version/", "/debug/pprof", "/logs2", "/.well-known/openid-configuration"} {
			for _, verb := range []string{"get", "post"} {
				reviews = append(reviews, authorizationv1.SubjectAccessReviewSpec{User: who.user, Groups: who.groups, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb}})
			}
		}
		for _, selected := range []string{"n1", "n2"} {
			for _, verb := range []string{"list", "watch", "deletecollection"} {
				reviews = append(reviews, reviewOf(who.user, who.groups, verb, "", "pods", "", "", selected),
					reviewOf(who.user, who.groups, verb, "resource.k8s.io", "resourceslices", "", "", selected))
			}
		}
	}
	for _, user := range []string{"urls-user", "all-urls-user"} {
		for _, path := range []string{"/metrics", "/metrics/x", "/debug", "/debug/", "/debug/pprof", "/logs", "/logsx", "/"} {
			reviews = append(reviews, authorizationv1.SubjectAccessReviewSpec{User: user, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "post"}})
		}
	}
	return reviews
}

const rbacGroup = rbacv1.GroupName

func reviewAll(ctx context.Context, t *testing.T, k clientset.Interface, reviews []authorizationv1.SubjectAccessReviewSpec) []authorizationv1.SubjectAccessReviewStatus {
	t.Helper()
	statuses := make([]authorizationv1.SubjectAccessReviewStatus, len(reviews))
	next := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				created, err := k.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: reviews[i]}, metav1.CreateOptions{})
				if err != nil {
					t.Errorf("%s: %v", describeReview(&reviews[i]), err)
					continue
				}
				statuses[i] = created.Status
			}
		})
	}
	for i := range reviews {
		next <- i
	}
	close(next)
	wg.Wait()
	return statuses
}

func subjectOf(spec *authorizationv1.SubjectAccessReviewSpec) authenticationv1.UserInfo {
	return authenticationv1.UserInfo{Username: spec.User, Groups: spec.Groups}
}

func describeReview(spec *authorizationv1.SubjectAccessReviewSpec) string {
	if n := spec.NonResourceAttributes; n != nil {
		return fmt.Sprintf("%s %v: %s %s", spec.User, spec.Groups, n.Verb, n.Path)
	}
	r := spec.ResourceAttributes
	return fmt.Sprintf("%s %v: %s %s %s/%s %q in %q %v", spec.User, spec.Groups, r.Verb, r.Group, r.Resource, r.Subresource, r.Name, r.Namespace, r.FieldSelector)
}
