# The life of workloads, as users lead it with kubectl. A line "lose NODE" is not for the shell: the node falls silent.
kubectl create namespace story
kubectl wait --for=create serviceaccount/default --timeout=30s
kubectl wait --for=create configmap/kube-root-ca.crt --timeout=30s

# The node that will be lost is for what must run there.
kubectl wait --for=create node/lost-0 --timeout=30s
kubectl taint node lost-0 only=edge:NoSchedule

# Rolling out, and back.
kubectl apply -f web.yaml
kubectl rollout status deployment/web --timeout=50s | tail -1
kubectl set image deployment/web web=image:2
kubectl rollout status deployment/web --timeout=50s | tail -1
kubectl rollout history deployment/web
kubectl rollout history deployment/web --revision=1
kubectl rollout undo deployment/web
kubectl rollout status deployment/web --timeout=50s | tail -1
kubectl rollout history deployment/web
kubectl rollout undo deployment/web --to-revision=7
kubectl rollout pause deployment/web
kubectl set image deployment/web web=image:3
kubectl scale deployment/web --replicas=4
kubectl wait deployment/web --for=jsonpath='{.status.readyReplicas}'=4 --timeout=50s
kubectl rollout undo deployment/web --to-revision=2
kubectl rollout resume deployment/web
kubectl rollout status deployment/web --timeout=50s | tail -1
kubectl rollout history deployment/web
kubectl expose deployment/web --port=80 --name=exposed
kubectl autoscale deployment/web --min=4 --max=6 --cpu=80%
kubectl wait hpa/web --for=jsonpath='{.status.conditions[0].type}' --timeout=50s
kubectl wait endpoints/exposed --for=jsonpath='{.subsets[0].ports[0].port}'=80 --timeout=30s

# A restart is a rollout whose template holds the time.
kubectl create deployment bounce --image=image:1 --replicas=2
kubectl rollout status deployment/bounce --timeout=50s | tail -1
kubectl rollout restart deployment/bounce
kubectl rollout status deployment/bounce --timeout=50s | tail -1
kubectl get replicasets -l app=bounce -o jsonpath='{range .items[*]}{.spec.replicas}{"\n"}{end}' | sort
kubectl delete deployment bounce
kubectl wait --for=delete pod -l app=bounce --timeout=50s | sort -u | wc -l

# The three ways to delete an owner.
kubectl create deployment temp --image=image:1 --replicas=2
kubectl rollout status deployment/temp --timeout=50s | tail -1
kubectl delete deployment temp --cascade=foreground --timeout=50s
kubectl get replicasets,pods -l app=temp
kubectl create deployment parent --image=image:1 --replicas=2
kubectl rollout status deployment/parent --timeout=50s | tail -1
kubectl delete deployment parent --cascade=orphan
kubectl get replicasets -l app=parent -o jsonpath='{range .items[*]}{.metadata.ownerReferences}{.spec.replicas}{"\n"}{end}'
kubectl delete replicaset -l app=parent --cascade=orphan
kubectl get pods -l app=parent -o jsonpath='{range .items[*]}{.metadata.ownerReferences}{.status.phase}{"\n"}{end}'

# Stateful sets.
kubectl apply -f db.yaml
kubectl rollout status statefulset/db --timeout=50s | tail -1
kubectl set image statefulset/db db=image:2
kubectl rollout status statefulset/db --timeout=50s | tail -1
kubectl rollout history statefulset/db
kubectl rollout undo statefulset/db
kubectl rollout status statefulset/db --timeout=50s | tail -1
kubectl patch statefulset db -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}'
kubectl set image statefulset/db db=image:3
kubectl rollout status statefulset/db --timeout=50s | tail -1
kubectl scale statefulset/db --replicas=4
kubectl wait statefulset/db --for=jsonpath='{.status.readyReplicas}'=4 --timeout=50s

# Daemon sets.
kubectl apply -f log.yaml
kubectl rollout status daemonset/log --timeout=50s | tail -1
kubectl set image daemonset/log log=image:2
kubectl rollout status daemonset/log --timeout=50s | tail -1
kubectl rollout history daemonset/log
kubectl rollout undo daemonset/log
kubectl rollout status daemonset/log --timeout=50s | tail -1

# Jobs and cron jobs.
kubectl apply -f work.yaml
kubectl wait job/work --for=condition=complete --timeout=50s
kubectl wait job/failing --for=condition=failed --timeout=50s
kubectl patch job later -p '{"spec":{"suspend":false}}'
kubectl wait job/later --for=condition=complete --timeout=50s
kubectl create cronjob yearly --image=image:1 --schedule='0 0 1 1 *'
kubectl create job manual --from=cronjob/yearly
kubectl wait job/manual --for=condition=complete --timeout=50s
kubectl create cronjob minute --image=image:1 --schedule='* * * * *'
kubectl patch cronjob minute -p '{"spec":{"successfulJobsHistoryLimit":1}}'

# Draining a node: the budget lets one pod go at a time.
kubectl cordon a-2
kubectl drain a-2 --pod-selector=app=web --timeout=55s >drain.txt 2>&1; echo $?; tail -1 drain.txt
kubectl get pods --field-selector=spec.nodeName=a-2 -l app=web
kubectl uncordon a-2
kubectl rollout status deployment/web --timeout=50s | tail -1
kubectl wait pdb/web --for=jsonpath='{.status.disruptionsAllowed}'=1 --timeout=30s
kubectl wait statefulset/db --for=jsonpath='{.status.readyReplicas}'=4 --timeout=50s

# A namespace with everything in it.
kubectl create namespace doomed
kubectl create deployment last --image=image:1 --replicas=2 -n doomed
kubectl rollout status deployment/last -n doomed --timeout=50s | tail -1
kubectl delete namespace doomed --timeout=55s
kubectl get namespace doomed

# A node is lost: what runs there is given up and made anew, but where it must run there is no other place.
kubectl apply -f edge.yaml
kubectl rollout status deployment/edge --timeout=50s | tail -1
lose lost-0
kubectl wait node/lost-0 --for=condition=Ready=Unknown --timeout=55s >/dev/null 2>&1; true
kubectl wait node/lost-0 --for=condition=Ready=Unknown --timeout=55s
for i in $(seq 50); do [ "$(kubectl get pods -l app=edge --field-selector=spec.nodeName= -o name | wc -l)" = 2 ] && echo yes && break; sleep 1; done
kubectl get pods -l app=edge -o jsonpath='{range .items[*]}{.spec.nodeName} {.metadata.deletionGracePeriodSeconds} {.status.phase}{"\n"}{end}' | sort

kubectl wait cronjob/minute --for=jsonpath='{.status.lastSuccessfulTime}' --timeout=58s
kubectl patch cronjob minute -p '{"spec":{"suspend":true}}'
sleep 20
kubectl get cronjob minute -o jsonpath='{.status.active}'
-- web.yaml --
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, annotations: {kubernetes.io/change-cause: first}}
spec:
  replicas: 3
  revisionHistoryLimit: 5
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: "image:1", ports: [{containerPort: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
-- db.yaml --
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 5432}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 3
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: db, image: "image:1"}]
-- log.yaml --
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: log}
spec:
  selector: {matchLabels: {app: log}}
  updateStrategy: {rollingUpdate: {maxUnavailable: 2}}
  template:
    metadata: {labels: {app: log}}
    spec:
      nodeSelector: {part: stays}
      containers: [{name: log, image: "image:1"}]
-- work.yaml --
apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  completions: 5
  parallelism: 2
  completionMode: Indexed
  template:
    spec: {restartPolicy: Never, containers: [{name: work, image: "image:1"}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: later}
spec:
  suspend: true
  template:
    spec: {restartPolicy: Never, containers: [{name: work, image: "image:1"}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: failing}
spec:
  activeDeadlineSeconds: 5
  template:
    spec: {restartPolicy: Never, nodeSelector: {no: where}, containers: [{name: work, image: "image:1"}]}
-- edge.yaml --
apiVersion: apps/v1
kind: Deployment
metadata: {name: edge}
spec:
  replicas: 2
  selector: {matchLabels: {app: edge}}
  template:
    metadata: {labels: {app: edge}}
    spec:
      nodeSelector: {kubernetes.io/hostname: lost-0}
      tolerations:
      - {key: only, value: edge, effect: NoSchedule}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      containers: [{name: edge, image: "image:1"}]
