package cleanup

import (
	"bytes"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/pki"
)

func TestCertificateRequestsAreOver(t *testing.T) {
	now := noon
	authority, err := pki.NewCA("test", now.Add(-48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(life time.Duration) []byte {
		pair, err := authority.Issue(pki.Leaf{CommonName: "x", Lifetime: life}, now.Add(-24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		return pair.Cert
	}
	type request = certificatesv1.CertificateSigningRequest
	type change = func(*request)
	is := func(of certificatesv1.RequestConditionType, age time.Duration) change {
		return func(r *request) {
			c := certificatesv1.CertificateSigningRequestCondition{Type: of}
			if age >= 0 {
				c.LastUpdateTime = metav1.NewTime(now.Add(-age))
			}
			r.Status.Conditions = append(r.Status.Conditions, c)
		}
	}
	holds := func(pem []byte) change { return func(r *request) { r.Status.Certificate = pem } }
	lasting, past := holds(certificate(48*time.Hour)), holds(certificate(time.Hour))
	const approved, denied, failure = certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed
	const hour, daily = time.Hour, 24 * time.Hour
	for _, test := range []struct {
		what    string
		age     time.Duration
		changes []change
		over    bool
	}{
		{"new", 0, nil, false},
		{"pending", 23 * hour, nil, false},
		{"pending for exactly a day", daily, nil, false},
		{"pending for longer", daily + 1, nil, true},
		{"pending with a certificate that nobody approved", 2 * hour, []change{past}, false},
		{"denied", 2 * hour, []change{is(denied, 30*time.Minute)}, false},
		{"denied an hour ago", 2 * hour, []change{is(denied, hour)}, false},
		{"denied longer ago", 2 * hour, []change{is(denied, hour+1)}, true},
		{"denied at a time nobody knows", 30 * daily, []change{is(denied, -1)}, false},
		{"failed", 2 * hour, []change{is(failure, 30*time.Minute)}, false},
		{"failed an hour ago", 2 * hour, []change{is(failure, hour)}, false},
		{"failed longer ago", 2 * hour, []change{is(failure, hour+1)}, true},
		{"approved, not issued", 30 * hour, []change{is(approved, 12*hour)}, false},
		{"approved a day ago, not issued", 30 * hour, []change{is(approved, daily)}, false},
		{"approved longer ago, never issued", 30 * hour, []change{is(approved, daily+1)}, true},
		{"issued", hour, []change{is(approved, time.Minute), lasting}, false},
		{"issued an hour ago", 3 * hour, []change{is(approved, hour), lasting}, false},
		{"issued longer ago", 3 * hour, []change{is(approved, hour+1), lasting}, true},
		{"issued and past", hour, []change{is(approved, time.Minute), past}, true},
		{"approved at a time nobody knows, issued and past", hour, []change{is(approved, -1), past}, true},
		{"denied, with a certificate that is past", hour, []change{is(denied, time.Minute), past}, false},
		{"approved, then failed lately", 9 * hour, []change{is(approved, 8*hour), is(failure, time.Minute)}, false},
		{"approved lately, failed before", 9 * hour, []change{is(approved, time.Minute), is(failure, 8*hour)}, true},
		{"what is no certificate is not past", hour, []change{is(approved, time.Minute), holds([]byte("x"))}, false},
		{"what cannot be read is not past", hour, []change{is(approved, time.Minute), holds([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))}, false},
		{"of a chain the first counts", hour, []change{is(approved, time.Minute), holds(bytes.Join([][]byte{certificate(time.Hour), certificate(48 * time.Hour)}, nil))}, true},
		{"a condition nobody knows", 30 * daily, []change{is("Odd", 20*daily)}, false},
	} {
		r := &request{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-test.age))}}
		for _, change := range test.changes {
			change(r)
		}
		if got := requestExpired(r, now); got != test.over {
			t.Errorf("%s: over %v", test.what, got)
		}
	}
	if requestExpired(&request{}, now) {
		t.Error("a request of no time is over")
	}
}
