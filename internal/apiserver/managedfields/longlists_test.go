package managedfields

import (
	"fmt"
	"math/rand"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/api/core"
)

// longPod has lists that are longer than maxPairwise, some with duplicates.
func longPod(r *rand.Rand) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "y", UID: "uid"}}
	names := func() (names []string) {
		for _, i := range r.Perm(30)[:maxPairwise+r.Intn(5)] {
			names = append(names, fmt.Sprintf("example.com/%d", i))
		}
		if r.Intn(6) == 0 {
			names[0] = names[len(names)-1]
		}
		return names
	}
	pod.Finalizers = names()
	for _, name := range names() {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name})
	}
	return pod
}

// TestLongListsEqualLibrary is TestFastEqualsLibrary for lists whose items are hashed.
func TestLongListsEqualLibrary(t *testing.T) {
	manager, err := resourceOf(core.Pod, &core.Pod.Versions[0]).Manager(nil)
	if err != nil {
		t.Fatal(err)
	}
	fast := 0
	for round := range 300 {
		r := rand.New(rand.NewSource(int64(round)))
		live := longPod(r)
		now := time.Now()
		manager.updateWithLibrary(&corev1.Pod{}, live, "creator")
		next := live.DeepCopy()
		switch round % 3 {
		case 0:
			r.Shuffle(len(next.Finalizers), reflect.Swapper(next.Finalizers))
			r.Shuffle(len(next.Spec.Volumes), reflect.Swapper(next.Spec.Volumes))
		case 1: // the same keys in the same order
			for i := range next.Spec.Volumes {
				if r.Intn(2) == 0 {
					next.Spec.Volumes[i].EmptyDir = &corev1.EmptyDirVolumeSource{}
				}
			}
		case 2:
			other := longPod(r)
			next.Finalizers, next.Spec.Volumes = other.Finalizers, other.Spec.Volumes
		}
		want, got := next.DeepCopy(), next.DeepCopy()
		for manager.updateWithLibrary(live, want, "writer"); time.Now().Unix() != now.Unix(); now = time.Now() {
			want = next.DeepCopy()
			manager.updateWithLibrary(live, want, "writer")
		}
		if !manager.updateFast(live, got, "writer", now) {
			continue
		}
		fast++
		if w, g := rawEntries(want), rawEntries(got); !reflect.DeepEqual(w, g) {
			t.Fatalf("round %d:\nlibrary %s\nfast    %s", round, show(w), show(g))
		}
	}
	if fast < 100 {
		t.Errorf("the fast path was taken in %d rounds", fast)
	}
}

func TestPosition(t *testing.T) {
	for length := range 20 {
		var nodes []node
		for i := range length {
			nodes = append(nodes, node{element: fmt.Sprintf(`"f:%02d"`, 2*i)})
		}
		for i := -1; i <= 2*length; i++ {
			want := 0
			for want < length && 2*want < i {
				want++
			}
			element := fmt.Sprintf(`"f:%02d"`, i)
			if i < 0 {
				element = `"f:"`
			}
			if got := position(nodes, element); got != want {
				t.Errorf("%s is at %d of %d, want %d", element, got, length, want)
			}
		}
	}
}
