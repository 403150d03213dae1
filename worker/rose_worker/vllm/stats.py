"""vLLM's statistics as the worker's own metrics have them."""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from rose.engine_records import SchedulerStats, StepTimes


class Stats(StatLoggerBase):  # type: ignore[misc]
    """vLLM calls `record` after each step."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self.forget()

    def forget(self) -> None:
        self._running = self._waiting = 0
        self._kv_usage = 0.0
        self._preemptions = self._queried = self._hit = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.batch_size = 0
        self.step_times = StepTimes()

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, *_others: Any, **_named: Any
    ) -> None:
        if iteration_stats is not None:
            self._preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        self._running = scheduler_stats.num_running_reqs
        self._waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        self._kv_usage = scheduler_stats.kv_cache_usage
        self._queried += scheduler_stats.prefix_cache_stats.queries
        self._hit += scheduler_stats.prefix_cache_stats.hits

    def log_engine_initialized(self) -> None:
        """There is nothing to log."""

    def snapshot(self, running: int) -> SchedulerStats:
        """`running` requests are known to the worker; vLLM's own count is that of its last step."""
        blocks = self._config.cache_config.num_gpu_blocks or 0
        return SchedulerStats(
            running=min(running, self._running) if self._waiting else running,
            waiting=self._waiting if running else 0,
            capacity=self._config.scheduler_config.max_num_seqs,
            kv_blocks_total=blocks,
            kv_blocks_used=round(self._kv_usage * blocks) if running else 0,
            preemptions=self._preemptions,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            prefix_query_tokens=self._queried,
            prefix_hit_tokens=self._hit,
            batch_size=self.batch_size,
            step_times=self.step_times,
        )
