package plugins

import (
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
)

// In which ways an update of a node may matter.
func TestWaysOfNodes(t *testing.T) {
	no := corev1.TaintEffectNoSchedule
	ready := func(status corev1.ConditionStatus) schedulertest.NodeOption {
		return func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: status})
		}
	}
	pressed := func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue})
	}
	declares := func(features ...string) schedulertest.NodeOption {
		return func(n *corev1.Node) { n.Status.DeclaredFeatures = features }
	}
	for name, test := range map[string]struct {
		old, now []schedulertest.NodeOption
		want     Action
	}{
		"nothing":                           {nil, nil, 0},
		"a heartbeat":                       {[]schedulertest.NodeOption{ready("True")}, []schedulertest.NodeOption{ready("True"), func(n *corev1.Node) { n.ResourceVersion, n.Status.Conditions[0].LastHeartbeatTime = "7", metav1.Now() }}, 0},
		"a condition":                       {[]schedulertest.NodeOption{ready("True")}, []schedulertest.NodeOption{ready("False")}, UpdateNodeCondition},
		"a condition more":                  {[]schedulertest.NodeOption{ready("True")}, []schedulertest.NodeOption{ready("True"), pressed}, UpdateNodeCondition},
		"a condition for another":           {[]schedulertest.NodeOption{ready("True")}, []schedulertest.NodeOption{pressed}, UpdateNodeCondition},
		"conditions in another order":       {[]schedulertest.NodeOption{pressed, ready("True")}, []schedulertest.NodeOption{ready("True"), pressed}, 0},
		"an annotation":                     {nil, []schedulertest.NodeOption{func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }}, UpdateNodeAnnotation},
		"an image":                          {nil, []schedulertest.NodeOption{schedulertest.NodeImage("x:1", 5)}, 0},
		"capacity, of which less is given":  {nil, []schedulertest.NodeOption{func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("9")} }}, 0},
		"more processors":                   {nil, []schedulertest.NodeOption{schedulertest.NodeHas(corev1.ResourceCPU, "8")}, UpdateNodeAllocatable},
		"fewer processors":                  {nil, []schedulertest.NodeOption{schedulertest.NodeHas(corev1.ResourceCPU, "1")}, UpdateNodeAllocatable},
		"as many, written otherwise":        {nil, []schedulertest.NodeOption{schedulertest.NodeHas(corev1.ResourceCPU, "4000m")}, 0},
		"a new resource":                    {nil, []schedulertest.NodeOption{schedulertest.NodeHas("example.com/gpu", "1")}, UpdateNodeAllocatable},
		"a resource that is gone":           {[]schedulertest.NodeOption{schedulertest.NodeHas("example.com/gpu", "1")}, nil, UpdateNodeAllocatable},
		"a new label":                       {nil, []schedulertest.NodeOption{schedulertest.NodeLabel("a", "b")}, UpdateNodeLabel},
		"a label's value":                   {[]schedulertest.NodeOption{schedulertest.NodeLabel("a", "b")}, []schedulertest.NodeOption{schedulertest.NodeLabel("a", "c")}, UpdateNodeLabel},
		"a label that is gone":              {[]schedulertest.NodeOption{schedulertest.NodeLabel("a", "b")}, nil, UpdateNodeLabel},
		"a label for another":               {[]schedulertest.NodeOption{schedulertest.NodeLabel("a", "b")}, []schedulertest.NodeOption{schedulertest.NodeLabel("c", "b")}, UpdateNodeLabel},
		"a new taint":                       {nil, []schedulertest.NodeOption{schedulertest.Taint("k", "v", no)}, UpdateNodeTaint},
		"a taint that is gone":              {[]schedulertest.NodeOption{schedulertest.Taint("k", "v", no)}, nil, UpdateNodeTaint},
		"a taint's value":                   {[]schedulertest.NodeOption{schedulertest.Taint("k", "v", no)}, []schedulertest.NodeOption{schedulertest.Taint("k", "w", no)}, UpdateNodeTaint},
		"a taint's effect":                  {[]schedulertest.NodeOption{schedulertest.Taint("k", "v", no)}, []schedulertest.NodeOption{schedulertest.Taint("k", "v", corev1.TaintEffectNoExecute)}, UpdateNodeTaint},
		"taints in another order":           {[]schedulertest.NodeOption{schedulertest.Taint("k", "v", no), schedulertest.Taint("l", "v", no)}, []schedulertest.NodeOption{schedulertest.Taint("l", "v", no), schedulertest.Taint("k", "v", no)}, UpdateNodeTaint},
		"a taint's key":                     {[]schedulertest.NodeOption{schedulertest.Taint("k", "v", no)}, []schedulertest.NodeOption{schedulertest.Taint("l", "v", no)}, UpdateNodeTaint},
		"no annotations, written otherwise": {nil, []schedulertest.NodeOption{func(n *corev1.Node) { n.Annotations = map[string]string{} }}, 0},
		"a feature for another":             {[]schedulertest.NodeOption{declares("x")}, []schedulertest.NodeOption{declares("y")}, UpdateNodeFeature},
		"it is opened":                      {[]schedulertest.NodeOption{schedulertest.Cordoned}, nil, UpdateNodeTaint},
		"it is closed":                      {nil, []schedulertest.NodeOption{schedulertest.Cordoned}, 0},
		"it stays closed":                   {[]schedulertest.NodeOption{schedulertest.Cordoned}, []schedulertest.NodeOption{schedulertest.Cordoned}, 0},
		"a feature":                         {nil, []schedulertest.NodeOption{declares("x")}, UpdateNodeFeature},
		"a feature less":                    {[]schedulertest.NodeOption{declares("x", "y")}, []schedulertest.NodeOption{declares("x")}, UpdateNodeFeature},
		"all at once":                       {[]schedulertest.NodeOption{schedulertest.Cordoned}, []schedulertest.NodeOption{schedulertest.NodeHas(corev1.ResourceCPU, "8"), schedulertest.NodeLabel("a", "b"), declares("x")}, UpdateNodeAllocatable | UpdateNodeLabel | UpdateNodeTaint | UpdateNodeFeature},
	} {
		if got := NodeUpdateActions(schedulertest.TestNode("n", test.old...), schedulertest.TestNode("n", test.now...)); got != test.want {
			t.Errorf("%s: %b, want %b", name, got, test.want)
		}
	}
}

// In which ways an update of a pod may matter.
func TestWaysOfPods(t *testing.T) {
	statuses := func(names ...string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			for _, name := range names {
				p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: &name})
			}
		}
	}
	extended := func(name string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: name}
		}
	}
	resized := func(spec, given string) schedulertest.PodOption { // what is asked now, and what the kubelet has given
		return func(p *corev1.Pod) {
			schedulertest.RequestingCPU(spec)(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: corev1.ResourceList{"cpu": resource.MustParse(given)},
				Resources: &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(given)}}}}
		}
	}
	sidecar := func(cpu string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}}}
		}
	}
	over := func(cpu string) schedulertest.PodOption {
		return func(p *corev1.Pod) { p.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse(cpu)} }
	}
	gpu := corev1.ResourceName("example.com/gpu")
	o := func(all ...schedulertest.PodOption) []schedulertest.PodOption { return all }
	for name, test := range map[string]struct {
		old, now []schedulertest.PodOption
		want     Action
	}{
		"nothing":                                  {nil, nil, UpdateOther},
		"its phase":                                {nil, o(schedulertest.InPhase(corev1.PodRunning)), UpdateOther},
		"a nomination":                             {nil, o(schedulertest.NominatedTo("n")), UpdateOther},
		"it begins to go":                          {nil, o(schedulertest.Terminating), UpdateOther},
		"a label":                                  {nil, o(schedulertest.Labelled("a", "b")), UpdatePodLabel},
		"a label's value":                          {o(schedulertest.Labelled("a", "b")), o(schedulertest.Labelled("a", "c")), UpdatePodLabel},
		"a label that is gone":                     {o(schedulertest.Labelled("a", "b")), nil, UpdatePodLabel},
		"an empty set of labels":                   {nil, o(func(p *corev1.Pod) { p.Labels = map[string]string{} }), UpdateOther},
		"a toleration":                             {nil, o(schedulertest.ToleratesAll), UpdatePodToleration},
		"its last gate":                            {o(schedulertest.WithSchedulingGates("x")), nil, UpdatePodGates},
		"one of its gates":                         {o(schedulertest.WithSchedulingGates("x", "y")), o(schedulertest.WithSchedulingGates("x")), UpdateOther},
		"less processor":                           {o(schedulertest.RequestingCPU("2")), o(schedulertest.RequestingCPU("1")), UpdatePodScaleDown},
		"more processor":                           {o(schedulertest.RequestingCPU("1")), o(schedulertest.RequestingCPU("2")), UpdateOther},
		"as much, written otherwise":               {o(schedulertest.RequestingCPU("1")), o(schedulertest.RequestingCPU("1000m")), UpdateOther},
		"less memory":                              {o(schedulertest.RequestingMemory("2Gi")), o(schedulertest.RequestingMemory("1Gi")), UpdatePodScaleDown},
		"less storage":                             {o(schedulertest.Requesting(corev1.ResourceEphemeralStorage, "2Gi")), o(schedulertest.Requesting(corev1.ResourceEphemeralStorage, "1Gi")), UpdatePodScaleDown},
		"no processor any more":                    {o(schedulertest.RequestingCPU("1")), nil, UpdatePodScaleDown},
		"less of one, more of another":             {o(schedulertest.RequestingCPU("2"), schedulertest.RequestingMemory("1Gi")), o(schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("9Gi")), UpdatePodScaleDown},
		"less of something":                        {o(schedulertest.Requesting(gpu, "2")), o(schedulertest.Requesting(gpu, "1")), UpdatePodScaleDown},
		"more of something":                        {o(schedulertest.Requesting(gpu, "1")), o(schedulertest.Requesting(gpu, "2")), UpdateOther},
		"something new":                            {nil, o(schedulertest.Requesting(gpu, "2")), UpdateOther},
		"nothing of something":                     {o(schedulertest.Requesting(gpu, "1")), nil, UpdatePodScaleDown},
		"something for something else":             {o(schedulertest.Requesting(gpu, "1")), o(schedulertest.Requesting("example.com/fpga", "1")), UpdatePodScaleDown},
		"less in a sidecar":                        {o(sidecar("2")), o(sidecar("1")), UpdatePodScaleDown},
		"less asked, not yet given back":           {o(schedulertest.OnNode("n"), resized("2", "2")), o(schedulertest.OnNode("n"), resized("1", "2")), UpdateOther},
		"less given":                               {o(schedulertest.OnNode("n"), resized("1", "2")), o(schedulertest.OnNode("n"), resized("1", "1")), UpdatePodScaleDown},
		"less overhead":                            {o(over("2")), o(over("1")), UpdatePodScaleDown},
		"less in one container, more in another":   {o(schedulertest.RequestingCPU("2"), sidecar("1")), o(schedulertest.RequestingCPU("1"), sidecar("2")), UpdateOther},
		"a toleration for another":                 {o(schedulertest.ToleratesAll), o(schedulertest.Tolerating(corev1.Toleration{Key: "x"})), UpdateOther},
		"a toleration less":                        {o(schedulertest.ToleratesAll), nil, UpdatePodToleration},
		"a gate":                                   {nil, o(schedulertest.WithSchedulingGates("x")), UpdateOther},
		"no claim for its extended resources":      {o(extended("x")), nil, UpdatePodClaims},
		"a claim made for it":                      {nil, o(statuses("a")), UpdatePodClaims},
		"the same claims":                          {o(statuses("a", "b")), o(statuses("a", "b")), UpdateOther},
		"a claim less":                             {o(statuses("a", "b")), o(statuses("a")), UpdatePodClaims},
		"a claim for its extended resources":       {nil, o(extended("x")), UpdatePodClaims},
		"another claim for its extended resources": {o(extended("x")), o(extended("y")), UpdatePodClaims},
		"all at once":                              {o(schedulertest.WithSchedulingGates("x"), schedulertest.RequestingCPU("2")), o(schedulertest.Labelled("a", "b"), schedulertest.ToleratesAll, schedulertest.RequestingCPU("1"), statuses("a")), UpdatePodLabel | UpdatePodToleration | UpdatePodGates | UpdatePodScaleDown | UpdatePodClaims},
	} {
		if got := PodUpdateActions(schedulertest.TestPod("p", test.old...), schedulertest.TestPod("p", test.now...)); got != test.want {
			t.Errorf("%s: %b, want %b", name, got, test.want)
		}
	}
}

// Changes have upstream's names in metrics.
func TestEventNames(t *testing.T) {
	for want, e := range map[string]Event{
		"NodeAdd":                                     {Resource: NodeResource, Action: Add},
		"NodeDelete":                                  {Resource: NodeResource, Action: Delete},
		"NodeUpdateNodeAllocatable":                   {Resource: NodeResource, Action: UpdateNodeAllocatable},
		"NodeUpdateNodeLabel":                         {Resource: NodeResource, Action: UpdateNodeLabel},
		"NodeUpdateNodeTaint":                         {Resource: NodeResource, Action: UpdateNodeTaint},
		"NodeUpdateNodeDeclaredFeature":               {Resource: NodeResource, Action: UpdateNodeFeature},
		"NodeUpdateNodeCondition":                     {Resource: NodeResource, Action: UpdateNodeCondition},
		"NodeUpdateNodeAnnotation":                    {Resource: NodeResource, Action: UpdateNodeAnnotation},
		"AssignedPodAdd":                              {Resource: AssignedPod, Action: Add},
		"AssignedPodDelete":                           {Resource: AssignedPod, Action: Delete},
		"AssignedPodUpdatePodLabel":                   {Resource: AssignedPod, Action: UpdatePodLabel},
		"AssignedPodUpdatePodScaleDown":               {Resource: AssignedPod, Action: UpdatePodScaleDown},
		"TargetPodUpdate":                             {Resource: TargetPod, Action: UpdateOther},
		"TargetPodUpdatePodToleration":                {Resource: TargetPod, Action: UpdatePodToleration},
		"TargetPodUpdatePodSchedulingGatesEliminated": {Resource: TargetPod, Action: UpdatePodGates},
		"TargetPodUpdatePodGeneratedResourceClaim":    {Resource: TargetPod, Action: UpdatePodClaims},
		"PersistentVolumeClaimUpdate":                 {Resource: PersistentVolumeClaim, Action: UpdateOther},
		"StorageClassAdd":                             {Resource: StorageClassResource, Action: Add},
		"CSINodeUpdate":                               {Resource: CSINodeResource, Action: UpdateOther},
		"ResourceSliceAdd":                            {Resource: ResourceSliceResource, Action: Add},
	} {
		if got := e.Label(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// An update of several kinds is told as several, each of one kind, of the same objects.
func TestEventParts(t *testing.T) {
	old, now := schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.Zone("1"))
	for _, test := range []struct {
		action Action
		want   []Action
	}{
		{0, nil},
		{Add, []Action{Add}},
		{UpdateOther, []Action{UpdateOther}},
		{UpdateNodeTaint | UpdateNodeAllocatable, []Action{UpdateNodeAllocatable, UpdateNodeTaint}},
		{Update, []Action{UpdateNodeAllocatable, UpdateNodeLabel, UpdateNodeTaint, UpdateNodeFeature, UpdateNodeCondition, UpdateNodeAnnotation, UpdatePodLabel, UpdatePodScaleDown, UpdatePodToleration, UpdatePodGates, UpdatePodClaims, UpdateOther}},
	} {
		var got []Action
		for _, part := range (Event{Resource: NodeResource, Action: test.action, Old: old, New: now}).Split() {
			if part.Resource != NodeResource || part.Old != any(old) || part.New != any(now) {
				t.Errorf("%b: part %+v", test.action, part)
			}
			got = append(got, part.Action)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%b has the parts %b, want %b", test.action, got, test.want)
		}
	}
}

// A side of an event may be missing, or something else.
func TestEventSides(t *testing.T) {
	pod, node := schedulertest.TestPod("p"), schedulertest.TestNode("n")
	if asPod(pod) != pod || asNode(node) != node {
		t.Error("what is there is not read")
	}
	for _, odd := range []any{nil, (*corev1.Service)(nil), &metav1.Status{}} {
		if asPod(odd) != nil || asNode(odd) != nil {
			t.Errorf("%T is read", odd)
		}
	}
	if asPod(node) != nil || asNode(pod) != nil {
		t.Error("one is taken for the other")
	}
}

// Changes that come together are told as they would be one by one; only opening a node and asking for less are one-sided.
func TestChangesAddUp(t *testing.T) {
	const seed = 61
	random := rand.New(rand.NewPCG(seed, 1))
	nodeWays := []struct {
		change      schedulertest.NodeOption
		there, back Action
	}{
		{schedulertest.NodeHas(corev1.ResourceCPU, "9"), UpdateNodeAllocatable, UpdateNodeAllocatable}, {schedulertest.Zone("z"), UpdateNodeLabel, UpdateNodeLabel}, {schedulertest.Taint("k", "v", corev1.TaintEffectNoExecute), UpdateNodeTaint, UpdateNodeTaint},
		{schedulertest.Cordoned, 0, UpdateNodeTaint}, {schedulertest.NodeImage("x", 1), 0, 0}, {func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"f"} }, UpdateNodeFeature, UpdateNodeFeature},
		{func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }, UpdateNodeAnnotation, UpdateNodeAnnotation},
		{func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True"}} }, UpdateNodeCondition, UpdateNodeCondition},
	}
	podWays := []struct {
		change      schedulertest.PodOption
		there, back Action
	}{
		{schedulertest.Labelled("a", "b"), UpdatePodLabel, UpdatePodLabel}, {schedulertest.ToleratesAll, UpdatePodToleration, UpdatePodToleration}, {schedulertest.WithSchedulingGates("g"), 0, UpdatePodGates}, {schedulertest.RequestingCPU("1"), 0, UpdatePodScaleDown},
		{schedulertest.RequestingMemory("1Gi"), 0, UpdatePodScaleDown}, {schedulertest.Requesting("example.com/gpu", "1"), 0, UpdatePodScaleDown}, {schedulertest.InPhase(corev1.PodRunning), 0, 0}, {schedulertest.Priority(3), 0, 0},
		{func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x"}} }, UpdatePodClaims, UpdatePodClaims},
	}
	for round := range 500 {
		node, pod := schedulertest.TestNode("n"), schedulertest.TestPod("p")
		var nodeThere, nodeBack, podThere, podBack Action
		for _, way := range nodeWays {
			if random.IntN(3) == 0 {
				way.change(node)
				nodeThere, nodeBack = nodeThere|way.there, nodeBack|way.back
			}
		}
		for _, way := range podWays {
			if random.IntN(3) == 0 {
				way.change(pod)
				podThere, podBack = podThere|way.there, podBack|way.back
			}
		}
		if there, back := NodeUpdateActions(schedulertest.TestNode("n"), node), NodeUpdateActions(node, schedulertest.TestNode("n")); there != nodeThere || back != nodeBack {
			t.Fatalf("seed %d, round %d: %b and back %b, want %b and %b of %+v", seed, round, there, back, nodeThere, nodeBack, node)
		}
		orOther := func(a Action) Action {
			if a == 0 {
				return UpdateOther
			}
			return a
		}
		if there, back := PodUpdateActions(schedulertest.TestPod("p"), pod), PodUpdateActions(pod, schedulertest.TestPod("p")); there != orOther(podThere) || back != orOther(podBack) {
			t.Fatalf("seed %d, round %d: %b and back %b, want %b and %b of %+v", seed, round, there, back, podThere, podBack, pod)
		}
		if NodeUpdateActions(node, node.DeepCopy()) != 0 || PodUpdateActions(pod, pod.DeepCopy()) != UpdateOther {
			t.Fatalf("seed %d, round %d: no change is one", seed, round)
		}
	}
}
