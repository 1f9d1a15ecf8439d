package controllers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/controllers"
	"skiff/internal/controllers/identity"
	"skiff/internal/controllers/node"
	"skiff/internal/controllers/volume"
	"skiff/internal/kind"
	"skiff/internal/localpath"
	"skiff/internal/pki"
	"skiff/test/world"
)

// notary is a deterministic token signer.
type fakeTokenSigner struct{}

func (fakeTokenSigner) LegacyToken(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return account.Name + "/" + secret.Name, nil
}

// testAuthority is a CA that is valid in the fake time of a world, which starts in the year 2000.
var testCA = func() *pki.CA {
	a, err := pki.NewCA("test", time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC))
	if err != nil {
		panic(err)
	}
	return a
}()

// allSettings enable all controllers.
func allSettings() controllers.Settings {
	return controllers.Settings{
		NamespaceGrace: new(time.Duration), LegacyTokenLifetime: new(24 * time.Hour), TerminatedPods: new(1), RootCA: testCA.Cert, TokenSigner: fakeTokenSigner{},
		Signing:       identity.SigningCAs{KubeletClient: testCA, KubeletServing: testCA, APIServerClient: testCA, LegacyUnknown: testCA},
		PodRanges:     []node.PodRange{{Prefix: netip.MustParsePrefix("10.244.0.0/16"), NodeBits: 24}},
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		LocalPath:     &volume.LocalPathSettings{Dir: "/volumes"},
	}
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }

func template(app, play string) corev1.PodTemplateSpec {
	labels := map[string]string{"app": app}
	if play != "" {
		labels[world.PlayLabel] = play
	}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "c", Image: "image:1"}}}}
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta(name), Spec: template(name, "").Spec}
	p.Labels = map[string]string{"app": name}
	for _, change := range changes {
		change(p)
	}
	return p
}

func deployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector("web"), Template: template("web", "")}}
}

// remove deletes an object with a propagation policy.
func remove(w *world.World, obj kind.Object, policy metav1.DeletionPropagation) {
	w.T.Helper()
	if err := w.Client.Delete(w.Ctx, obj, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		w.T.Fatal(err)
	}
}

func room(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// scenarios in which every controller writes.
func scenarios() []scenario {
	all := allSettings()
	return []scenario{
		{name: "deployment", run: []string{"deployment", "replicaset"}, nodes: 3, play: playDeployment},
		{name: "recreate", run: []string{"deployment", "replicaset"}, nodes: 3, play: playRecreate},
		{name: "replicas", run: []string{"replicationcontroller", "replicaset"}, nodes: 3, play: playReplicas},
		{name: "statefulset", run: []string{"statefulset", "garbagecollector"}, nodes: 3, play: playStatefulSet},
		{name: "daemonset", run: []string{"daemonset"}, nodes: 3, play: playDaemonSet},
		{name: "jobs", run: []string{"job", "ttl-after-finished-controller"}, nodes: 2, play: playJobs},
		{name: "cron job", run: []string{"cronjob", "job", "garbagecollector"}, nodes: 1, play: playCronJob},
		{name: "namespace", run: []string{"namespace"}, settings: all, nodes: 1, play: playNamespace},
		{name: "garbage", run: []string{"garbagecollector"}, play: playGarbage},
		{name: "quota", run: []string{"resourcequota"}, play: playQuota},
		{name: "migrations", run: []string{"storage-version-migrator-controller"}, play: playMigrations},
		{name: "pods that are over", run: []string{"podgc"}, settings: all, play: playPodCleanup},
		{name: "certificates", run: []string{"csrapproving", "csrsigning", "csrcleaner"}, settings: all, play: playCertificates},
		{name: "serving certificates", run: []string{identity.ServingApprovingName, "csrsigning"}, settings: all, play: playServingCertificates},
		{name: "pod certificates", run: []string{"podcertificaterequest-cleaner-controller"}, settings: all, play: playPodCertificates},
		{name: "tokens nobody uses", run: []string{"legacy-service-account-token-cleaner"}, settings: all, play: playLegacyTokens},
		{name: "server leases", run: []string{"apiserver-lease-cleaner-controller"}, settings: all, play: playServerLeases},
		{name: "accounts", run: []string{"serviceaccount", "serviceaccount-token", "root-ca-cert-publisher", "kube-apiserver-serving-clustertrustbundle-publisher-controller",
			"clusterrole-aggregation", "bootstrapsigner", "tokencleaner"}, settings: all, play: playAccounts},
		{name: "services", run: []string{"endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller", "service-cidr-controller", "service"}, nodes: 2, play: playServices},
		{name: "nodes", run: []string{"nodelifecycle", "taint-eviction-controller", "nodeipam", "ttl"}, settings: all, nodes: 2, play: playNodes},
		{name: "policies", run: []string{"validatingadmissionpolicy-status-controller"}, play: playPolicies},
		{name: "budgets", run: []string{"disruption-controller", "replicaset"}, nodes: 3, play: playBudgets},
		{name: "autoscaler", run: []string{"horizontalpodautoscaling", "deployment", "replicaset"}, nodes: 3, play: playAutoscaler},
		{name: "claims", run: []string{"persistentvolume-binder", "pvc-protection", "pv-protection", "volumeattributesclass-protection-controller", "ephemeral-volume",
			"persistentvolume-expander", "local-path-provisioner", "local-path-cleaner"}, settings: all, nodes: 1, play: playClaims},
		{name: "resource claims", run: []string{"resourceclaim-controller"}, play: playResourceClaims},
		{name: "device taints", run: []string{"device-taint-eviction-controller"}, play: playDeviceTaints},
		{name: "attaching", run: []string{"attachdetach", "persistentvolume-binder"}, play: playAttaching},
	}
}

// playDeployment rolls out, scales while it rolls, pauses, and rolls back.
func playDeployment(w *world.World) {
	world.Create(w, deployment(3))
	w.Pass(time.Minute)
	world.Edit(w, "default", "web", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "image:2" })
	w.Pass(time.Minute)
	world.Edit(w, "default", "web", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(5)); d.Spec.Paused = true })
	w.Pass(time.Minute)
	world.Edit(w, "default", "web", func(d *appsv1.Deployment) {
		d.Spec.Paused, d.Spec.Template.Spec.Containers[0].Image = false, "image:1"
	})
	w.Pass(time.Minute)
}

func playRecreate(w *world.World) {
	d := deployment(3)
	d.Spec.Strategy.Type, d.Spec.RevisionHistoryLimit = appsv1.RecreateDeploymentStrategyType, new(int32(0))
	world.Create(w, d)
	w.Pass(time.Minute)
	world.Edit(w, "default", "web", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "image:2" })
	w.Pass(time.Minute)
}

// playReplicas adopts a pod, releases one, scales, and replaces a deleted one.
func playReplicas(w *world.World) {
	world.Create(w, pod("db"))
	w.Pass(time.Second) // the controllers observe it before its owner
	world.Create(w, &corev1.ReplicationController{ObjectMeta: meta("db"), Spec: corev1.ReplicationControllerSpec{
		Replicas: new(int32(3)), Selector: map[string]string{"app": "db"}, Template: new(template("db", ""))}})
	world.Create(w, &appsv1.ReplicaSet{ObjectMeta: meta("cache"), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(4)), Selector: selector("cache"), Template: template("cache", "")}})
	w.Pass(time.Minute)
	w.Remove(world.Get[*corev1.Pod](w, "default", "db"))
	for _, p := range world.List[*corev1.Pod](w) {
		if p.Labels["app"] == "cache" {
			world.Edit(w, "default", p.Name, func(p *corev1.Pod) { p.Labels = map[string]string{"app": "free"} })
			break
		}
	}
	w.Pass(time.Minute)
	world.Edit(w, "default", "db", func(c *corev1.ReplicationController) { c.Spec.Replicas = new(int32(1)) })
	w.Pass(time.Minute)
}

// playStatefulSet updates half of the pods, then all, and scales down, deleting the claims of removed pods.
func playStatefulSet(w *world.World) {
	world.Create(w, &appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(3)), Selector: selector("db"), ServiceName: "db", Template: template("db", ""),
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: room("1Gi")}}}},
		PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: "Retain", WhenScaled: "Delete"},
		UpdateStrategy:                       appsv1.StatefulSetUpdateStrategy{Type: "RollingUpdate", RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))}},
	}})
	w.Pass(time.Minute)
	world.Edit(w, "default", "db", func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "image:2" })
	w.Pass(time.Minute)
	world.Edit(w, "default", "db", func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(0)) })
	w.Pass(time.Minute)
	world.Edit(w, "default", "db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(1)) })
	w.Pass(time.Minute)
}

// playDaemonSet changes the template, adds a node and excludes one.
func playDaemonSet(w *world.World) {
	world.Create(w, &appsv1.DaemonSet{ObjectMeta: meta("log"), Spec: appsv1.DaemonSetSpec{Selector: selector("log"), Template: template("log", "")}})
	w.Pass(time.Minute)
	world.Edit(w, "default", "log", func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.Containers[0].Image = "image:2" })
	w.Pass(time.Minute)
	world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3", Labels: map[string]string{"zone": "1"}}})
	w.Pass(time.Minute)
	world.Edit(w, "default", "log", func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.NodeSelector = map[string]string{"zone": "1"} })
	w.Pass(time.Minute)
}

func job(name, play string, change func(*batchv1.JobSpec)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: meta(name), Spec: batchv1.JobSpec{Template: template(name, play)}}
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	if change != nil {
		change(&j.Spec)
	}
	return j
}

// playJobs runs jobs of several kinds to completion.
func playJobs(w *world.World) {
	world.Create(w, job("indexed", world.PlayEnd, func(s *batchv1.JobSpec) {
		s.CompletionMode, s.Completions, s.Parallelism = new(batchv1.IndexedCompletion), new(int32(4)), new(int32(2))
	}))
	world.Create(w, job("failing", world.PlayFail, func(s *batchv1.JobSpec) { s.BackoffLimit = new(int32(1)) }))
	world.Create(w, job("later", world.PlayEnd, func(s *batchv1.JobSpec) { s.Suspend = new(true) }))
	world.Create(w, job("brief", world.PlayEnd, func(s *batchv1.JobSpec) { s.TTLSecondsAfterFinished = new(int32(60)) }))
	w.Pass(time.Minute)
	world.Edit(w, "default", "later", func(j *batchv1.Job) { j.Spec.Suspend = new(false) })
	w.Pass(5 * time.Minute)
}

func playCronJob(w *world.World) {
	world.Create(w, &batchv1.CronJob{ObjectMeta: meta("tick"), Spec: batchv1.CronJobSpec{
		Schedule: "* * * * *", SuccessfulJobsHistoryLimit: new(int32(1)), JobTemplate: batchv1.JobTemplateSpec{Spec: job("tick", world.PlayEnd, nil).Spec}}})
	w.Pass(3*time.Minute + 30*time.Second)
	world.Edit(w, "default", "tick", func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) })
	w.Pass(time.Minute)
}

func playNamespace(w *world.World) {
	namespace := world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}})
	for i := range 3 {
		world.Create(w, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: fmt.Sprint("c", i)}})
		world.Create(w, pod(fmt.Sprint("p", i), func(p *corev1.Pod) { p.Namespace = "work" }))
	}
	w.Pass(10 * time.Second)
	w.Remove(namespace)
	w.Pass(time.Minute)
	if !world.Gone[*corev1.Namespace](w, "", "work") {
		w.T.Error("the namespace is still there")
	}
}

// playGarbage deletes owners with the three propagation policies.
func playGarbage(w *world.World) {
	owner := func(name string) *corev1.ConfigMap {
		made := world.Create(w, &corev1.ConfigMap{ObjectMeta: meta(name)})
		for i := range 2 {
			child := &corev1.ConfigMap{ObjectMeta: meta(fmt.Sprint(name, "-", i))}
			child.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: made.Name, UID: made.UID, BlockOwnerDeletion: new(true)}}
			child = world.Create(w, child)
			grandchild := &corev1.ConfigMap{ObjectMeta: meta(child.Name + "-child")}
			grandchild.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: child.Name, UID: child.UID}}
			world.Create(w, grandchild)
		}
		return made
	}
	background, foreground, orphan := owner("background"), owner("foreground"), owner("orphan")
	w.Pass(time.Minute)
	remove(w, background, metav1.DeletePropagationBackground)
	remove(w, foreground, metav1.DeletePropagationForeground)
	remove(w, orphan, metav1.DeletePropagationOrphan)
	w.Pass(2 * time.Minute)
}

func playQuota(w *world.World) {
	world.Create(w, &corev1.ResourceQuota{ObjectMeta: meta("limits"), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("5"), corev1.ResourceConfigMaps: resource.MustParse("10")}}})
	world.Create(w, pod("one"))
	world.Create(w, &corev1.ConfigMap{ObjectMeta: meta("a")})
	w.Pass(time.Minute)
	w.Remove(world.Get[*corev1.Pod](w, "default", "one"))
	world.Edit(w, "default", "limits", func(q *corev1.ResourceQuota) { q.Spec.Hard[corev1.ResourcePods] = resource.MustParse("6") })
	w.Pass(10 * time.Minute)
}

// playPodCleanup leaves pods on a deleted node, and more terminated pods than are kept.
func playPodCleanup(w *world.World) {
	gone := world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}})
	world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}})
	on := func(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = name } }
	for i := range 3 {
		world.Create(w, pod(fmt.Sprint("lost", i), on("gone")))
	}
	w.Pass(2 * time.Second)
	for i := range 3 {
		world.Create(w, pod(fmt.Sprint("ended", i), on("here")))
		world.EditStatus(w, "default", fmt.Sprint("ended", i), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		w.Pass(time.Second)
	}
	w.Remove(gone)
	w.Pass(5 * time.Minute)
}

func certificateRequest(w *world.World, name string, addresses ...net.IP) *certificatesv1.CertificateSigningRequest {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.T.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}, IPAddresses: addresses,
	}, key)
	if err != nil {
		w.T.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}}}
}

// playCertificates has requests approved and signed; those older than an hour are cleaned up.
func playCertificates(w *world.World) {
	world.Create(w, certificateRequest(w, "old"))
	w.Pass(3 * time.Hour)
	world.Create(w, certificateRequest(w, "a"))
	world.Create(w, certificateRequest(w, "b"))
	w.Pass(time.Minute)
}

// playServingCertificates has two nodes request serving certificates, one of them for an address that is not its own.
func playServingCertificates(w *world.World) {
	for name, address := range map[string]string{"n0": "10.9.0.1", "n1": "10.9.0.2"} {
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}}})
	}
	for _, name := range []string{"n0", "n1"} {
		request := certificateRequest(w, name, net.ParseIP("10.9.0.1"))
		request.Spec.SignerName = certificatesv1.KubeletServingSignerName
		request.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
		world.CreateAs(w, "system:node:"+name, []string{"system:nodes", "system:authenticated"}, request)
	}
	w.Pass(time.Minute)
	for _, request := range world.List[*certificatesv1.CertificateSigningRequest](w) {
		if signed := len(request.Status.Certificate) > 0; signed != (request.Name == "n0") {
			w.T.Errorf("the request of %s is signed: %t", request.Name, signed)
		}
	}
}

func playPodCertificates(w *world.World) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.T.Fatal(err)
	}
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		w.T.Fatal(err)
	}
	for i := range 2 {
		world.Create(w, &certificatesv1.PodCertificateRequest{ObjectMeta: meta(fmt.Sprint("r", i)), Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/signer", PodName: "p", PodUID: "1", ServiceAccountName: "s", ServiceAccountUID: "2", NodeName: "n", NodeUID: "3", StubPKCS10Request: stub}})
	}
	w.Pass(time.Hour)
}

func playLegacyTokens(w *world.World) {
	world.Create(w, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-apiserver-legacy-service-account-token-tracking"},
		Data: map[string]string{"since": time.Now().UTC().Format(time.DateOnly)}})
	account := &corev1.ServiceAccount{ObjectMeta: meta("robot")}
	for i := range 2 {
		account.Secrets = append(account.Secrets, corev1.ObjectReference{Name: fmt.Sprint("token", i)})
	}
	account = world.Create(w, account)
	for _, ref := range account.Secrets {
		secret := &corev1.Secret{ObjectMeta: meta(ref.Name), Type: corev1.SecretTypeServiceAccountToken}
		secret.Annotations = map[string]string{corev1.ServiceAccountNameKey: account.Name, corev1.ServiceAccountUIDKey: string(account.UID)}
		world.Create(w, secret)
	}
	w.Pass(6 * 24 * time.Hour)
}

func playServerLeases(w *world.World) {
	for i := range 3 {
		world.Create(w, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: fmt.Sprint("apiserver-", i), Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(fmt.Sprint("apiserver-", i)), RenewTime: new(metav1.NowMicro()), LeaseDurationSeconds: new(int32(3600))}})
	}
	w.Pass(3 * time.Hour)
}

// playAccounts creates the objects every namespace has, token secrets, aggregated roles, and signs cluster-info.
func playAccounts(w *world.World) {
	world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-public"}})
	world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}})
	world.Create(w, &corev1.ServiceAccount{ObjectMeta: meta("robot"), Secrets: []corev1.ObjectReference{{Name: "other"}, {Name: "spare"}}})
	for _, name := range []string{"token", "spare", "nobodys"} {
		secret := &corev1.Secret{ObjectMeta: meta(name), Type: corev1.SecretTypeServiceAccountToken}
		secret.Annotations = map[string]string{corev1.ServiceAccountNameKey: "robot"}
		if name == "nobodys" {
			secret.Annotations[corev1.ServiceAccountNameKey] = "stranger"
		}
		world.Create(w, secret)
	}
	rules := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}
	world.Create(w, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: map[string]string{"into": "all"}}, Rules: rules})
	world.Create(w, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all"}, AggregationRule: &rbacv1.AggregationRule{
		ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"into": "all"}}}}})
	world.Create(w, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{"kubeconfig": "content"}})
	for id, expires := range map[string]time.Duration{"aaaaaa": 24 * time.Hour, "bbbbbb": 10 * time.Minute} {
		world.Create(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id}, Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{
			"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-signing": []byte("true"),
			"expiration": []byte(time.Now().Add(expires).UTC().Format(time.RFC3339))}})
	}
	w.Pass(time.Minute)
	// In its own scenario: a controller that is stopped when a secret is deleted cannot know that its account listed it.
	w.Remove(world.Get[*corev1.Secret](w, "default", "spare"))
	w.Pass(time.Minute)
	w.Remove(world.Get[*corev1.ConfigMap](w, "work", "kube-root-ca.crt"))
	w.Remove(world.Get[*corev1.ServiceAccount](w, "work", "default"))
	w.Pass(time.Hour)
}

func playServices(w *world.World) {
	service := func(name string, change func(*corev1.ServiceSpec)) {
		s := &corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		change(&s.Spec)
		world.Create(w, s)
	}
	service("web", func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "web"} })
	service("open", func(s *corev1.ServiceSpec) {
		s.Type, s.Selector, s.Ports[0].Port = corev1.ServiceTypeLoadBalancer, map[string]string{"app": "web"}, 8080
	})
	service("own", func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })
	world.Create(w, &corev1.Endpoints{ObjectMeta: meta("own"), Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "10.3.2.3"}, {IP: "10.3.2.4"}}, Ports: []corev1.EndpointPort{{Port: 80}}}}})
	for i := range 3 {
		world.Create(w, pod(fmt.Sprint("web", i), func(p *corev1.Pod) { p.Labels["app"] = "web" }))
	}
	w.Pass(time.Minute)
	w.Remove(world.Get[*corev1.Pod](w, "default", "web1"))
	world.Edit(w, "default", "own", func(e *corev1.Endpoints) { e.Subsets[0].Addresses = e.Subsets[0].Addresses[:1] })
	cidr := world.Create(w, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.5.0.0/24"}}})
	w.Pass(time.Minute)
	w.Remove(cidr)
	w.Remove(world.Get[*corev1.Service](w, "default", "open"))
	w.Pass(time.Minute)
}

// playNodes: one of two nodes becomes unreachable, its pods are evicted, and it recovers.
func playNodes(w *world.World) {
	world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}})
	beat := func(name string) {
		world.EditStatus(w, "", name, func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
		})
	}
	tolerate := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName = "n1"
			p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}}
		}
	}
	world.Create(w, pod("hasty", tolerate(0)))
	world.Create(w, pod("patient", tolerate(3600)))
	for range 30 {
		beat("n0")
		w.Pass(10 * time.Second)
	}
	for range 12 {
		beat("n0")
		beat("n1")
		w.Pass(10 * time.Second)
	}
	if taints := world.Get[*corev1.Node](w, "", "n1").Spec.Taints; len(taints) > 0 || !world.Gone[*corev1.Pod](w, "default", "hasty") {
		w.T.Errorf("a node that is back has taints %v, or its pod was never driven off", taints)
	}
	// The last heartbeats: the clock continues, and the state is read before they expire.
	beat("n0")
	beat("n1")
}

func playBudgets(w *world.World) {
	world.Create(w, &appsv1.ReplicaSet{ObjectMeta: meta("web"), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(4)), Selector: selector("web"), Template: template("web", "")}})
	world.Create(w, &policyv1.PodDisruptionBudget{ObjectMeta: meta("web"), Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromString("50%")), Selector: selector("web")}})
	world.Create(w, &policyv1.PodDisruptionBudget{ObjectMeta: meta("none"), Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: selector("none")}})
	w.Pass(time.Minute)
	w.Remove(world.List[*corev1.Pod](w)[0])
	w.Pass(time.Minute)
	world.Edit(w, "default", "web", func(s *appsv1.ReplicaSet) { s.Spec.Replicas = new(int32(2)) })
	w.Pass(time.Minute)
}

func playAutoscaler(w *world.World) {
	world.Create(w, deployment(1))
	world.Create(w, &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta("web"), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MinReplicas: new(int32(3)), MaxReplicas: 5,
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("500m"))}}}}}})
	w.Pass(2 * time.Minute)
	world.Edit(w, "default", "web", func(h *autoscalingv2.HorizontalPodAutoscaler) {
		h.Spec.MaxReplicas, h.Spec.MinReplicas = 2, new(int32(1))
	})
	w.Pass(2 * time.Minute)
}

func claim(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: meta(name), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: room("1Gi")}}}
}

func diskVolume(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{Capacity: room("2Gi"),
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, PersistentVolumeSource: source}}
}

// playClaims binds a claim to a static volume, provisions a local path for an ephemeral claim, and releases both.
func playClaims(w *world.World) {
	world.Edit(w, "", "n0", func(n *corev1.Node) { metav1.SetMetaDataAnnotation(&n.ObjectMeta, localpath.DirAnnotation, "/volumes") })
	world.Create(w, &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: "disk.example.com", Parameters: map[string]string{"iops": "1"}})
	world.Create(w, diskVolume("v1", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/v1"}}))
	w.Pass(10 * time.Second)
	world.Create(w, claim("a", ""))
	w.Pass(10 * time.Second)
	world.Create(w, claim("b", ""))
	scratch := claim("", volume.LocalPathClass)
	owner := world.Create(w, pod("p", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: scratch.Spec}}}}}
	}))
	w.Pass(10 * time.Second)
	world.Edit(w, "default", "p-scratch", func(c *corev1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, "volume.kubernetes.io/selected-node", "n0") // as the scheduler would
	})
	w.Pass(10 * time.Second)
	world.Create(w, claim("kept", volume.LocalPathClass))
	w.Remove(world.Get[*corev1.PersistentVolumeClaim](w, "default", "a"))
	w.Pass(10 * time.Second)
	w.Remove(owner)
	w.Remove(world.Get[*corev1.PersistentVolumeClaim](w, "default", "p-scratch")) // as the garbage collector would
	w.Remove(world.Get[*storagev1.VolumeAttributesClass](w, "", "gold"))
	w.Pass(10 * time.Minute)
	removeLocalPaths(w, "n0")
	w.Pass(10 * time.Minute)
}

// removeLocalPaths reports all directories as removed that a node has to remove, as its kubelet would.
func removeLocalPaths(w *world.World, node string) {
	world.Edit(w, "", node, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, localpath.RemovedAnnotation, n.Annotations[localpath.RemovalsAnnotation])
	})
}

// playAttaching attaches a volume to a node and detaches it.
func playAttaching(w *world.World) {
	world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0", Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	disk := func(name string) {
		world.Create(w, diskVolume(name, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: name}}))
		w.Pass(time.Second)
		c := claim(name, "")
		c.Spec.VolumeName = name
		world.Create(w, c)
		world.Create(w, pod(name, func(p *corev1.Pod) {
			p.Spec.NodeName = "n0"
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
		}))
	}
	attach := func() { // as the attacher would
		for _, a := range world.List[*storagev1.VolumeAttachment](w) {
			world.EditStatus(w, "", a.Name, func(a *storagev1.VolumeAttachment) { a.Status.Attached = true })
		}
		w.Pass(time.Minute)
	}
	disk("one")
	disk("two")
	w.Pass(time.Minute)
	attach()
	w.Remove(world.Get[*corev1.Pod](w, "default", "one"))
	w.Pass(time.Minute)
	if left := world.List[*storagev1.VolumeAttachment](w); len(left) != 1 {
		w.T.Errorf("%d volumes are attached", len(left))
	}
}
