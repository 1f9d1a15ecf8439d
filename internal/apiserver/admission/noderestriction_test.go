package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: cluster(name)}
	n.UID = "uid-n1"
	for _, c := range change {
		c(n)
	}
	return n
}

func labelled(key string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels = map[string]string{key: "x"} }
}

func TestNodeRestrictionPods(t *testing.T) {
	mine, theirs := pod(on("n1")), pod(on("n2"), func(p *corev1.Pod) { p.Name = "theirs" })
	r := &nodeRestriction{newWorld(node("n1"), mine.DeepCopy(), theirs.DeepCopy()).env, allow{}}
	owner := func(change ...func(*metav1.OwnerReference)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			o := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "uid-n1", Controller: ptr(true)}
			for _, c := range change {
				c(&o)
			}
			p.OwnerReferences = []metav1.OwnerReference{o}
		}
	}
	static := func(change ...func(*corev1.Pod)) *Attributes {
		return creating(pod(append([]func(*corev1.Pod){on("n1"), mirror, owner()}, change...)...), byNode("n1"))
	}
	claims := func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} }
	volume := func(v corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}} }
	}
	debugSecret := func(p *corev1.Pod) {
		everyKind(p)
		p.Spec.EphemeralContainers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
	}
	for name, c := range map[string]struct {
		a    *Attributes
		want string
	}{
		"somebody else":         {creating(pod()), unhandled},
		"a node in name only":   {creating(pod(), by("system:node:n1")), unhandled},
		"a node without a name": {creating(pod(), byNode("")), `could not determine node from user "system:node:"`},
		"no mirror":             {creating(pod(on("n1")), byNode("n1")), `pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods`},
		"mirror":                {static(), ""},
		"mirror elsewhere":      {static(on("n2")), "can only create pods with spec.nodeName set to itself"},
		"mirror of nobody":      {static(func(p *corev1.Pod) { p.OwnerReferences = nil }), "can only create pods with an owner reference set to itself"},
		"mirror of two":         {static(func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0]) }), "a single owner reference"},
		"mirror of another":     {static(owner(func(o *metav1.OwnerReference) { o.Name = "n2" })), "can only create pods with an owner reference set to itself"},
		"mirror of a past node": {static(owner(func(o *metav1.OwnerReference) { o.UID = "old" })), "node n1 UID mismatch: expected old got uid-n1"},
		"mirror that blocks":    {static(owner(func(o *metav1.OwnerReference) { o.BlockOwnerDeletion = ptr(true) })), "must not set blockOwnerDeletion"},
		"mirror uncontrolled":   {static(owner(func(o *metav1.OwnerReference) { o.Controller = nil })), "a controller owner reference"},
		"mirror with account":   {static(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "x" }), `node "n1" can not create pods that reference serviceaccounts`},
		"mirror with secret":    {static(volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}})), "can not create pods that reference secrets"},
		"mirror debug secret":   {static(debugSecret), "can not create pods that reference secrets"},
		"mirror with config": {static(volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}})),
			"can not create pods that reference configmaps"},
		"mirror with claim":     {static(volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}})), "reference persistentvolumeclaims"},
		"mirror with devices":   {static(claims), "can not create pods that reference resourceclaims"}, // CVE-2025-4563
		"mirror with unknown":   {static(volume(corev1.VolumeSource{})), "unknown volume type"},
		"mirror with host path": {static(volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}})), ""},
		"delete":                {write(Delete, mine, byNode("n1")), ""},
		"delete elsewhere":      {write(Delete, theirs, byNode("n1")), `node "n1" can only delete pods with spec.nodeName set to itself`},
		"update":                {updating(mine, mine.DeepCopy(), byNode("n1")), `unexpected operation "UPDATE", node "n1" can only create and delete mirror pods`},
		"status":                {updating(mine, mine.DeepCopy(), sub("status"), byNode("n1")), ""},
		"status elsewhere":      {updating(theirs, theirs.DeepCopy(), sub("status"), byNode("n1")), "can only update pod status for pods with spec.nodeName set to itself"},
		"status moves":          {updating(theirs, pod(on("n1")), sub("status"), byNode("n1")), "can only update pod status for pods with spec.nodeName set to itself"},
		"status and labels":     {updating(mine, pod(on("n1"), func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }), sub("status"), byNode("n1")), "cannot update labels through pod status"},
		"status and claims": {updating(mine, pod(on("n1"), func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x"}}
		}), sub("status"), byNode("n1")), "cannot update resource claim statues"},
		"evict":              {creating(mine.DeepCopy(), other(pods, "eviction", &policyv1.Eviction{}), byNode("n1")), ""},
		"evict elsewhere":    {creating(theirs.DeepCopy(), other(pods, "eviction", &policyv1.Eviction{ObjectMeta: named("web")}), byNode("n1")), "node n1 can only evict pods with spec.nodeName set to itself"},
		"evict nobody":       {creating(pod(func(p *corev1.Pod) { p.Name = "gone" }), other(pods, "eviction", &policyv1.Eviction{}), byNode("n1")), `pods "gone" not found`},
		"debug container":    {updating(mine, mine.DeepCopy(), sub("ephemeralcontainers"), byNode("n1")), `unexpected pod subresource "ephemeralcontainers"`},
		"exec, a connection": {func() *Attributes { a := creating(mine, sub("exec"), byNode("n1")); a.Operation = Connect; return a }(), unhandled},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(r, c.a), c.want) })
	}
}

func TestNodeRestrictionNodes(t *testing.T) {
	r := &nodeRestriction{newWorld().env, allow{}}
	tainted := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x"}} }
	config := func(n *corev1.Node) { n.Spec.ConfigSource = &corev1.NodeConfigSource{} }
	owned := func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{UID: "x"}} }
	lease := func(namespace, name string) *Attributes {
		a := creating(node(name), byNode("n1"))
		a.Resource, a.Namespace, a.Object = leases.WithVersion("v1"), namespace, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return a
	}
	slice := func(on string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{ObjectMeta: cluster("s"), Spec: resourcev1.ResourceSliceSpec{NodeName: &on}}
	}
	csi := func(name string, drivers ...string) *storagev1.CSINode {
		c := &storagev1.CSINode{ObjectMeta: cluster(name)}
		for _, d := range drivers {
			c.Spec.Drivers = append(c.Spec.Drivers, storagev1.CSINodeDriver{Name: d})
		}
		return c
	}
	pvc := claim("", "1Gi")
	grown := pvc.DeepCopy()
	grown.Status.Capacity = amounts("storage=2Gi")
	marked := grown.DeepCopy()
	marked.Labels = map[string]string{"a": "b"}
	for name, c := range map[string]struct {
		a    *Attributes
		want string
	}{
		"register":                 {creating(node("n1", labelled(corev1.LabelHostname)), byNode("n1")), ""},
		"register another":         {creating(node("n2"), byNode("n1")), `node "n1" is not allowed to modify node "n2"`},
		"register with config":     {creating(node("n1", config), byNode("n1")), "non-nil configSource"},
		"restricted label":         {creating(node("n1", labelled("node-restriction.kubernetes.io/x")), byNode("n1")), `node "n1" is not allowed to set the following labels: node-restriction.kubernetes.io/x`},
		"below restricted":         {creating(node("n1", labelled("a.node-restriction.kubernetes.io/x")), byNode("n1")), "is not allowed to set"},
		"unknown kubernetes":       {creating(node("n1", labelled("foo.kubernetes.io/x")), byNode("n1")), "is not allowed to set"},
		"control plane role":       {creating(node("n1", labelled("node-role.kubernetes.io/control-plane")), byNode("n1")), "is not allowed to set"},
		"unknown k8s":              {creating(node("n1", labelled("k8s.io/x")), byNode("n1")), "is not allowed to set"},
		"kubelet namespace":        {creating(node("n1", labelled("a.kubelet.kubernetes.io/x")), byNode("n1")), ""},
		"node namespace":           {creating(node("n1", labelled("node.kubernetes.io/x")), byNode("n1")), ""},
		"other label":              {creating(node("n1", labelled("example.com/x")), byNode("n1")), ""},
		"update":                   {updating(node("n1"), node("n1", labelled("a")), byNode("n1")), ""},
		"update another":           {updating(node("n2"), node("n2"), byNode("n1")), "is not allowed to modify node"},
		"add restricted":           {updating(node("n1"), node("n1", labelled("node-restriction.kubernetes.io/x")), byNode("n1")), "is not allowed to modify labels: node-restriction.kubernetes.io/x"},
		"remove restricted":        {updating(node("n1", labelled("node-restriction.kubernetes.io/x")), node("n1"), byNode("n1")), "is not allowed to modify labels"},
		"add restricted by status": {updating(node("n1"), node("n1", labelled("node-restriction.kubernetes.io/x")), sub("status"), byNode("n1")), "is not allowed to modify labels"},
		"taint":                    {updating(node("n1"), node("n1", tainted), byNode("n1")), `node "n1" is not allowed to modify taints`},
		"untaint":                  {updating(node("n1", tainted), node("n1"), byNode("n1")), `node "n1" is not allowed to modify taints`},
		"register with taint":      {creating(node("n1", tainted), byNode("n1")), ""},
		"gets an owner":            {updating(node("n1"), node("n1", owned), byNode("n1")), `node "n1" is not allowed to modify ownerReferences`}, // CVE-2025-5187
		"config":                   {updating(node("n1"), node("n1", config), byNode("n1")), "is not allowed to update configSource"},
		"delete itself":            {write(Delete, node("n1"), byNode("n1")), ""},
		"delete another":           {write(Delete, node("n2"), byNode("n1")), "is not allowed to modify node"},
		"lease":                    {lease("kube-node-lease", "n1"), ""},
		"lease of another":         {lease("kube-node-lease", "n2"), "can only access node lease with the same name"},
		"lease elsewhere":          {lease("kube-system", "n1"), `can only access leases in the "kube-node-lease" system namespace`},
		"slice":                    {creating(slice("n1"), byNode("n1")), ""},
		"slice of another":         {creating(slice("n2"), byNode("n1")), "can only create ResourceSlice with the same NodeName"},
		"delete slice of another":  {write(Delete, slice("n2"), byNode("n1")), "can only delete ResourceSlice with the same NodeName"},
		"csi node":                 {creating(csi("n1", "d"), byNode("n1")), ""},
		"csi node of another":      {updating(csi("n2"), csi("n2", "d"), byNode("n1")), "can only access CSINode with the same name"},
		"csi spec by status":       {updating(csi("n1"), csi("n1", "d"), sub("status"), byNode("n1")), "is not allowed to modify CSINode spec via status"},
		"claim":                    {updating(pvc, grown, byNode("n1")), "may only update PVC status"},
		"claim status":             {updating(pvc, grown, sub("status"), byNode("n1")), ""},
		"claim labels by status":   {updating(pvc, marked, sub("status"), byNode("n1")), "is not allowed to update fields other than status.quantity and status.conditions"},
		"anything else":            {creating(&corev1.ConfigMap{ObjectMeta: named("c")}, byNode("n1")), ""},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(r, c.a), c.want) })
	}
}

func TestNodeRestrictionTokens(t *testing.T) {
	token := func(audience string) corev1.VolumeProjection {
		return corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience}}
	}
	mine := pod(on("n1"), func(p *corev1.Pod) {
		p.UID = "p"
		p.Spec.ServiceAccountName = "robot"
		p.Spec.Volumes = []corev1.Volume{
			{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{token("vault"),
				{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/mine"}}}}}},
			{Name: "csi", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "inline.csi"}}},
			{Name: "disk", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		}
	})
	theirs := pod(on("n2"), func(p *corev1.Pod) { p.Name, p.UID = "theirs", "q" })
	data := claim("", "1Gi")
	data.Spec.VolumeName = "pv"
	driver := func(name, audience string) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: cluster(name), Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: audience}}}}
	}
	disk := &corev1.PersistentVolume{ObjectMeta: cluster("pv")}
	disk.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "v"}
	w := newWorld(node("n1"), mine, theirs, data, disk, driver("inline.csi", "inline"), driver("ebs.csi.aws.com", "disk"), account("robot"))
	r := &nodeRestriction{w.env, allow{"request-serviceaccounts-token-audience special robot", "request-serviceaccounts-podcertificate-signer example.com:extra robot"}}
	request := func(pod, uid string, audiences ...string) *Attributes {
		body := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: audiences, BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: "uid"},
		}}
		body.Spec.BoundObjectRef.UID = mine.UID
		if uid != "p" {
			body.Spec.BoundObjectRef.UID = theirs.UID
		}
		return creating(account("robot"), other(serviceAccounts, "token", body), byNode("n1"))
	}
	unbound := request("web", "p")
	unbound.Object.(*authenticationv1.TokenRequest).Spec.BoundObjectRef = nil
	for name, c := range map[string]struct {
		a    *Attributes
		want string
	}{
		"named by a volume":  {request("web", "p", "vault"), ""},
		"inline driver":      {request("web", "p", "inline"), ""},
		"driver of a claim":  {request("web", "p", "disk"), ""},
		"allowed by a role":  {request("web", "p", "special"), ""},
		"nobody named it":    {request("web", "p", "other"), `system:node:n1 is not authorized to request tokens for audience "other"`},
		"none named it":      {request("web", "p"), `is not authorized to request tokens for audience ""`},
		"two":                {request("web", "p", "a", "b"), "node may only request 0 or 1 audiences"},
		"unbound":            {unbound, "node requested token not bound to a pod"},
		"pod elsewhere":      {request("theirs", "q", "vault"), "node requested token bound to a pod scheduled on a different node"},
		"pod of before":      {request("web", "q", "vault"), "does not match the UID in record"},
		"no pod":             {request("gone", "p", "vault"), `pods "gone" not found`},
		"the account itself": {updating(account("robot"), account("robot"), byNode("n1")), ""},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(r, c.a), c.want) })
	}

	robot, err := w.Get(context.Background(), serviceAccounts, "team", "robot")
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(change ...func(*certificatesv1.PodCertificateRequestSpec)) *Attributes {
		req := &certificatesv1.PodCertificateRequest{ObjectMeta: named("r"), Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/mine", PodName: "web", PodUID: "p", NodeName: "n1", NodeUID: "uid-n1",
			ServiceAccountName: "robot", ServiceAccountUID: robot.GetUID(),
		}}
		for _, f := range change {
			f(&req.Spec)
		}
		return creating(req, byNode("n1"))
	}
	type spec = certificatesv1.PodCertificateRequestSpec
	for name, c := range map[string]struct {
		a    *Attributes
		want string
	}{
		"certificate":             {certificate(), ""},
		"signer by a role":        {certificate(func(s *spec) { s.SignerName = "example.com/extra" }), ""},
		"signer of nobody":        {certificate(func(s *spec) { s.SignerName = "example.com/other" }), `pod "team/web" does not mount a podCertificate projected volume for signer "example.com/other"`},
		"certificate for another": {certificate(func(s *spec) { s.NodeName = "n2" }), "which is not the requesting node"},
		"pod of another":          {certificate(func(s *spec) { s.PodName, s.PodUID = "theirs", "q" }), "is not running on node"},
		"pod of before":           {certificate(func(s *spec) { s.PodUID = "x" }), "differs from running pod"},
		"other account":           {certificate(func(s *spec) { s.ServiceAccountName = "x" }), "differs from running pod"},
		"account of before":       {certificate(func(s *spec) { s.ServiceAccountUID = "x" }), "differs from the running service account"},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(r, c.a), c.want) })
	}
}

func signingRequest(t testing.TB, signer, name string, groups ...string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: cluster("csr"), Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: signer, Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
	}}
}

func TestCertificates(t *testing.T) {
	client, kubelet := certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName
	plain := signingRequest(t, client, "jane", "devs")
	signed := plain.DeepCopy()
	signed.Status.Certificate = []byte("x")
	renamed := signed.DeepCopy()
	renamed.Spec.SignerName = "mine/x"
	failed := plain.DeepCopy()
	failed.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateFailed}}
	garbage := plain.DeepCopy()
	garbage.Spec.Request = []byte("x")
	who := allow{"approve signers mine/*", "sign signers mine/x", "attest signers mine/x"}
	all, none := signers{allow{"approve signers kubernetes.io/*", "sign signers " + client}}, signers{who}
	bundle := func(signer, content string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: cluster("b"), Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: content}}
	}
	owned := bundle("a/b", "x")
	owned.Finalizers = []string{"f/f"}
	for name, c := range map[string]struct {
		r    Plugin
		a    *Attributes
		want string
	}{
		"approve":                    {certificateApproval{all}, updating(plain, plain.DeepCopy(), sub("approval")), ""},
		"approve for another":        {certificateApproval{none}, updating(plain, plain.DeepCopy(), sub("approval")), `certificatesigningrequests.certificates.k8s.io "csr" is forbidden: user not permitted to approve requests with signerName "kubernetes.io/kube-apiserver-client"`},
		"approve under another name": {certificateApproval{none}, updating(plain, renamed, sub("approval")), "user not permitted to approve"},
		"approve by update":          {certificateApproval{none}, updating(plain, plain), unhandled},
		"sign":                       {certificateSigning{all}, updating(plain, signed, sub("status")), ""},
		"sign for another":           {certificateSigning{none}, updating(plain, signed, sub("status")), `user not permitted to sign requests with signerName "kubernetes.io/kube-apiserver-client"`},
		"sign under another name":    {certificateSigning{none}, updating(plain, renamed, sub("status")), "user not permitted to sign"},
		"fail for another":           {certificateSigning{none}, updating(plain, failed, sub("status")), "user not permitted to sign"},
		"status as it was":           {certificateSigning{none}, updating(plain, plain.DeepCopy(), sub("status")), ""},
		"attest":                     {clusterTrustBundleAttest{none}, creating(bundle("mine/x", "x")), ""},
		"attest for another":         {clusterTrustBundleAttest{none}, creating(bundle("a/b", "x")), `user not permitted to attest for signerName "a/b"`},
		"attest by update":           {clusterTrustBundleAttest{none}, updating(bundle("a/b", "x"), bundle("a/b", "y")), "user not permitted to attest"},
		"bundle of nobody":           {clusterTrustBundleAttest{none}, creating(bundle("", "x")), ""},
		"bundle collected":           {clusterTrustBundleAttest{none}, updating(bundle("a/b", "x"), owned), ""},
		"delete bundle":              {clusterTrustBundleAttest{none}, write(Delete, bundle("a/b", "x")), unhandled},
		"subject":                    {certificateSubjectRestriction{}, creating(plain), ""},
		"master":                     {certificateSubjectRestriction{}, creating(signingRequest(t, client, "jane", "devs", "system:masters")), "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"},
		"master of another signer":   {certificateSubjectRestriction{}, creating(signingRequest(t, "a/b", "jane", "system:masters")), ""},
		"garbage":                    {certificateSubjectRestriction{}, creating(garbage), "failed to parse CSR: PEM block type must be CERTIFICATE REQUEST"},
		"node asks for itself":       {&nodeRestriction{newWorld().env, who}, creating(signingRequest(t, kubelet, "system:node:n1", "system:nodes"), byNode("n1")), ""},
		"node asks for another":      {&nodeRestriction{newWorld().env, who}, creating(signingRequest(t, kubelet, "system:node:n2", "system:nodes"), byNode("n1")), "can only create a node CSR with CN=system:node:n1"},
		"node asks another signer":   {&nodeRestriction{newWorld().env, who}, creating(signingRequest(t, "a/b", "x"), byNode("n1")), ""},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(c.r, c.a), c.want) })
	}
}
