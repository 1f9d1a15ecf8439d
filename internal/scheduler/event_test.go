package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// In which ways an update of a node may matter.
func TestWaysOfNodes(t *testing.T) {
	no := corev1.TaintEffectNoSchedule
	ready := func(status corev1.ConditionStatus) nodeOption {
		return func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: status})
		}
	}
	pressed := func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue})
	}
	declares := func(features ...string) nodeOption {
		return func(n *corev1.Node) { n.Status.DeclaredFeatures = features }
	}
	for name, test := range map[string]struct {
		old, now []nodeOption
		want     Action
	}{
		"nothing":                           {nil, nil, 0},
		"a heartbeat":                       {[]nodeOption{ready("True")}, []nodeOption{ready("True"), func(n *corev1.Node) { n.ResourceVersion, n.Status.Conditions[0].LastHeartbeatTime = "7", metav1.Now() }}, 0},
		"a condition":                       {[]nodeOption{ready("True")}, []nodeOption{ready("False")}, UpdateNodeCondition},
		"a condition more":                  {[]nodeOption{ready("True")}, []nodeOption{ready("True"), pressed}, UpdateNodeCondition},
		"a condition for another":           {[]nodeOption{ready("True")}, []nodeOption{pressed}, UpdateNodeCondition},
		"conditions in another order":       {[]nodeOption{pressed, ready("True")}, []nodeOption{ready("True"), pressed}, 0},
		"an annotation":                     {nil, []nodeOption{func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }}, UpdateNodeAnnotation},
		"an image":                          {nil, []nodeOption{nodeImage("x:1", 5)}, 0},
		"capacity, of which less is given":  {nil, []nodeOption{func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("9")} }}, 0},
		"more processors":                   {nil, []nodeOption{nodeHas(corev1.ResourceCPU, "8")}, UpdateNodeAllocatable},
		"fewer processors":                  {nil, []nodeOption{nodeHas(corev1.ResourceCPU, "1")}, UpdateNodeAllocatable},
		"as many, written otherwise":        {nil, []nodeOption{nodeHas(corev1.ResourceCPU, "4000m")}, 0},
		"a new resource":                    {nil, []nodeOption{nodeHas("example.com/gpu", "1")}, UpdateNodeAllocatable},
		"a resource that is gone":           {[]nodeOption{nodeHas("example.com/gpu", "1")}, nil, UpdateNodeAllocatable},
		"a new label":                       {nil, []nodeOption{nodeLabel("a", "b")}, UpdateNodeLabel},
		"a label's value":                   {[]nodeOption{nodeLabel("a", "b")}, []nodeOption{nodeLabel("a", "c")}, UpdateNodeLabel},
		"a label that is gone":              {[]nodeOption{nodeLabel("a", "b")}, nil, UpdateNodeLabel},
		"a label for another":               {[]nodeOption{nodeLabel("a", "b")}, []nodeOption{nodeLabel("c", "b")}, UpdateNodeLabel},
		"a new taint":                       {nil, []nodeOption{taint("k", "v", no)}, UpdateNodeTaint},
		"a taint that is gone":              {[]nodeOption{taint("k", "v", no)}, nil, UpdateNodeTaint},
		"a taint's value":                   {[]nodeOption{taint("k", "v", no)}, []nodeOption{taint("k", "w", no)}, UpdateNodeTaint},
		"a taint's effect":                  {[]nodeOption{taint("k", "v", no)}, []nodeOption{taint("k", "v", corev1.TaintEffectNoExecute)}, UpdateNodeTaint},
		"taints in another order":           {[]nodeOption{taint("k", "v", no), taint("l", "v", no)}, []nodeOption{taint("l", "v", no), taint("k", "v", no)}, UpdateNodeTaint},
		"a taint's key":                     {[]nodeOption{taint("k", "v", no)}, []nodeOption{taint("l", "v", no)}, UpdateNodeTaint},
		"no annotations, written otherwise": {nil, []nodeOption{func(n *corev1.Node) { n.Annotations = map[string]string{} }}, 0},
		"a feature for another":             {[]nodeOption{declares("x")}, []nodeOption{declares("y")}, UpdateNodeFeature},
		"it is opened":                      {[]nodeOption{cordoned}, nil, UpdateNodeTaint},
		"it is closed":                      {nil, []nodeOption{cordoned}, 0},
		"it stays closed":                   {[]nodeOption{cordoned}, []nodeOption{cordoned}, 0},
		"a feature":                         {nil, []nodeOption{declares("x")}, UpdateNodeFeature},
		"a feature less":                    {[]nodeOption{declares("x", "y")}, []nodeOption{declares("x")}, UpdateNodeFeature},
		"all at once":                       {[]nodeOption{cordoned}, []nodeOption{nodeHas(corev1.ResourceCPU, "8"), nodeLabel("a", "b"), declares("x")}, UpdateNodeAllocatable | UpdateNodeLabel | UpdateNodeTaint | UpdateNodeFeature},
	} {
		if got := nodeChanges(testNode("n", test.old...), testNode("n", test.now...)); got != test.want {
			t.Errorf("%s: %b, want %b", name, got, test.want)
		}
	}
}

// In which ways an update of a pod may matter.
func TestWaysOfPods(t *testing.T) {
	statuses := func(names ...string) podOption {
		return func(p *corev1.Pod) {
			for _, name := range names {
				p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: &name})
			}
		}
	}
	extended := func(name string) podOption {
		return func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: name}
		}
	}
	resized := func(spec, given string) podOption { // what is asked now, and what the kubelet has given
		return func(p *corev1.Pod) {
			asksCPU(spec)(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: corev1.ResourceList{"cpu": resource.MustParse(given)},
				Resources: &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(given)}}}}
		}
	}
	beside := func(cpu string) podOption {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}}}
		}
	}
	over := func(cpu string) podOption {
		return func(p *corev1.Pod) { p.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse(cpu)} }
	}
	gpu := corev1.ResourceName("example.com/gpu")
	o := func(all ...podOption) []podOption { return all }
	for name, test := range map[string]struct {
		old, now []podOption
		want     Action
	}{
		"nothing":                                  {nil, nil, updateOther},
		"its phase":                                {nil, o(inPhase(corev1.PodRunning)), updateOther},
		"a nomination":                             {nil, o(nominatedTo("n")), updateOther},
		"it begins to go":                          {nil, o(isGoing), updateOther},
		"a label":                                  {nil, o(labelled("a", "b")), UpdatePodLabel},
		"a label's value":                          {o(labelled("a", "b")), o(labelled("a", "c")), UpdatePodLabel},
		"a label that is gone":                     {o(labelled("a", "b")), nil, UpdatePodLabel},
		"an empty set of labels":                   {nil, o(func(p *corev1.Pod) { p.Labels = map[string]string{} }), updateOther},
		"a toleration":                             {nil, o(toleratesAll), UpdatePodToleration},
		"its last gate":                            {o(gatedBy("x")), nil, UpdatePodGates},
		"one of its gates":                         {o(gatedBy("x", "y")), o(gatedBy("x")), updateOther},
		"less processor":                           {o(asksCPU("2")), o(asksCPU("1")), UpdatePodScaleDown},
		"more processor":                           {o(asksCPU("1")), o(asksCPU("2")), updateOther},
		"as much, written otherwise":               {o(asksCPU("1")), o(asksCPU("1000m")), updateOther},
		"less memory":                              {o(asksMemory("2Gi")), o(asksMemory("1Gi")), UpdatePodScaleDown},
		"less storage":                             {o(asks(corev1.ResourceEphemeralStorage, "2Gi")), o(asks(corev1.ResourceEphemeralStorage, "1Gi")), UpdatePodScaleDown},
		"no processor any more":                    {o(asksCPU("1")), nil, UpdatePodScaleDown},
		"less of one, more of another":             {o(asksCPU("2"), asksMemory("1Gi")), o(asksCPU("1"), asksMemory("9Gi")), UpdatePodScaleDown},
		"less of something":                        {o(asks(gpu, "2")), o(asks(gpu, "1")), UpdatePodScaleDown},
		"more of something":                        {o(asks(gpu, "1")), o(asks(gpu, "2")), updateOther},
		"something new":                            {nil, o(asks(gpu, "2")), updateOther},
		"nothing of something":                     {o(asks(gpu, "1")), nil, UpdatePodScaleDown},
		"something for something else":             {o(asks(gpu, "1")), o(asks("example.com/fpga", "1")), UpdatePodScaleDown},
		"less in a sidecar":                        {o(beside("2")), o(beside("1")), UpdatePodScaleDown},
		"less asked, not yet given back":           {o(on("n"), resized("2", "2")), o(on("n"), resized("1", "2")), updateOther},
		"less given":                               {o(on("n"), resized("1", "2")), o(on("n"), resized("1", "1")), UpdatePodScaleDown},
		"less beside its containers":               {o(over("2")), o(over("1")), UpdatePodScaleDown},
		"less in one container, more in another":   {o(asksCPU("2"), beside("1")), o(asksCPU("1"), beside("2")), updateOther},
		"a toleration for another":                 {o(toleratesAll), o(tolerating(corev1.Toleration{Key: "x"})), updateOther},
		"a toleration less":                        {o(toleratesAll), nil, UpdatePodToleration},
		"a gate":                                   {nil, o(gatedBy("x")), updateOther},
		"no claim for its extended resources":      {o(extended("x")), nil, UpdatePodClaims},
		"a claim made for it":                      {nil, o(statuses("a")), UpdatePodClaims},
		"the same claims":                          {o(statuses("a", "b")), o(statuses("a", "b")), updateOther},
		"a claim less":                             {o(statuses("a", "b")), o(statuses("a")), UpdatePodClaims},
		"a claim for its extended resources":       {nil, o(extended("x")), UpdatePodClaims},
		"another claim for its extended resources": {o(extended("x")), o(extended("y")), UpdatePodClaims},
		"all at once":                              {o(gatedBy("x"), asksCPU("2")), o(labelled("a", "b"), toleratesAll, asksCPU("1"), statuses("a")), UpdatePodLabel | UpdatePodToleration | UpdatePodGates | UpdatePodScaleDown | UpdatePodClaims},
	} {
		if got := podChanges(testPod("p", test.old...), testPod("p", test.now...)); got != test.want {
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
		"TargetPodUpdate":                             {Resource: TargetPod, Action: updateOther},
		"TargetPodUpdatePodToleration":                {Resource: TargetPod, Action: UpdatePodToleration},
		"TargetPodUpdatePodSchedulingGatesEliminated": {Resource: TargetPod, Action: UpdatePodGates},
		"TargetPodUpdatePodGeneratedResourceClaim":    {Resource: TargetPod, Action: UpdatePodClaims},
		"PersistentVolumeClaimUpdate":                 {Resource: PersistentVolumeClaim, Action: updateOther},
		"StorageClassAdd":                             {Resource: StorageClassResource, Action: Add},
		"CSINodeUpdate":                               {Resource: CSINodeResource, Action: updateOther},
		"ResourceSliceAdd":                            {Resource: ResourceSliceResource, Action: Add},
	} {
		if got := e.label(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// An update of several kinds is told as several, each of one kind, of the same objects.
func TestEventParts(t *testing.T) {
	old, now := testNode("n"), testNode("n", zone("1"))
	for _, test := range []struct {
		action Action
		want   []Action
	}{
		{0, nil},
		{Add, []Action{Add}},
		{updateOther, []Action{updateOther}},
		{UpdateNodeTaint | UpdateNodeAllocatable, []Action{UpdateNodeAllocatable, UpdateNodeTaint}},
		{Update, []Action{UpdateNodeAllocatable, UpdateNodeLabel, UpdateNodeTaint, UpdateNodeFeature, UpdateNodeCondition, UpdateNodeAnnotation, UpdatePodLabel, UpdatePodScaleDown, UpdatePodToleration, UpdatePodGates, UpdatePodClaims, updateOther}},
	} {
		var got []Action
		for _, part := range (Event{Resource: NodeResource, Action: test.action, Old: old, New: now}).parts() {
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
	pod, node := testPod("p"), testNode("n")
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
		change      nodeOption
		there, back Action
	}{
		{nodeHas(corev1.ResourceCPU, "9"), UpdateNodeAllocatable, UpdateNodeAllocatable}, {zone("z"), UpdateNodeLabel, UpdateNodeLabel}, {taint("k", "v", corev1.TaintEffectNoExecute), UpdateNodeTaint, UpdateNodeTaint},
		{cordoned, 0, UpdateNodeTaint}, {nodeImage("x", 1), 0, 0}, {func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"f"} }, UpdateNodeFeature, UpdateNodeFeature},
		{func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }, UpdateNodeAnnotation, UpdateNodeAnnotation},
		{func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True"}} }, UpdateNodeCondition, UpdateNodeCondition},
	}
	podWays := []struct {
		change      podOption
		there, back Action
	}{
		{labelled("a", "b"), UpdatePodLabel, UpdatePodLabel}, {toleratesAll, UpdatePodToleration, UpdatePodToleration}, {gatedBy("g"), 0, UpdatePodGates}, {asksCPU("1"), 0, UpdatePodScaleDown},
		{asksMemory("1Gi"), 0, UpdatePodScaleDown}, {asks("example.com/gpu", "1"), 0, UpdatePodScaleDown}, {inPhase(corev1.PodRunning), 0, 0}, {priority(3), 0, 0},
		{func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x"}} }, UpdatePodClaims, UpdatePodClaims},
	}
	for round := range 500 {
		node, pod := testNode("n"), testPod("p")
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
		if there, back := nodeChanges(testNode("n"), node), nodeChanges(node, testNode("n")); there != nodeThere || back != nodeBack {
			t.Fatalf("seed %d, round %d: %b and back %b, want %b and %b of %+v", seed, round, there, back, nodeThere, nodeBack, node)
		}
		orOther := func(a Action) Action {
			if a == 0 {
				return updateOther
			}
			return a
		}
		if there, back := podChanges(testPod("p"), pod), podChanges(pod, testPod("p")); there != orOther(podThere) || back != orOther(podBack) {
			t.Fatalf("seed %d, round %d: %b and back %b, want %b and %b of %+v", seed, round, there, back, podThere, podBack, pod)
		}
		if nodeChanges(node, node.DeepCopy()) != 0 || podChanges(pod, pod.DeepCopy()) != updateOther {
			t.Fatalf("seed %d, round %d: no change is one", seed, round)
		}
	}
}
